"""The rates that a running task takes from, for its handler."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from redis_state.errors import InvalidField
from redis_state.timeouts import timeout
from redis_state.worker.handler.pauses import SHORT_SLEEP, ContextPauses
from redis_state.worker.queue.limits import Rate
from redis_state.worker.queue.rates import take
from redis_state.worker.tasks.children.children import ChildTasks


class ContextRates(ContextPauses):
    """The part of a handler's context that takes from rates, which all tasks share."""

    _children: ChildTasks

    async def take(self, name: str, rate: Rate, *, cost: int = 1) -> None:
        """Take from a rate that all tasks of the namespace share, and wait until it may be used.

        For calls of a model, say: ``await ctx.take("model", Rate(60, timedelta(minutes=1)))``. All
        callers give a name the same rate. While new code gives another one than old code, each
        holds for those that give it. One that was set comes before it, see `Rates`. Who comes
        first has the first place. A wait of more than a second frees the worker. It is taken once
        per call and task: a later run does not take it again. In the work of a step each attempt
        takes, and a wait keeps the worker. A checkpoint. Errors: InvalidField for a cost above the
        rate that is given; TaskCancelled, LeaseLost.
        """
        wait_ms, under = 1, ""
        if self._steps.in_work:
            while wait_ms:
                wait_ms, under = await self._take(name, rate, cost, under)
                if wait_ms:
                    with suppress(TimeoutError):
                        async with timeout(wait_ms / 1000):
                            await self.inbox.until_over()
            return
        while wait_ms:
            given = (name, rate, cost, under)
            wait_ms, under = await self._steps.do(f"take {name}", self._take_soon, given, {})
            left, longest = timedelta(milliseconds=wait_ms), self.store.settings.active_task_ttl
            while left > timedelta():
                await self.sleep(min(left, longest), name=f"wait for {name}")
                left -= longest

    async def _take(self, name: str, rate: Rate, cost: int, under: str) -> tuple[int, str]:
        """Take from a rate; return in how many ms it may be used, and by which rate."""
        queue = self._children.queue
        if queue is None:
            raise InvalidField("rate", "is kept by the queue, and this run has none")
        return await take(queue, name, rate, cost, under)

    async def _take_soon(self, name: str, rate: Rate, cost: int, under: str) -> tuple[int, str]:
        """Take from a rate, and wait here for a place that comes soon."""
        wait_ms, under = await self._take(name, rate, cost, under)
        if under and wait_ms <= SHORT_SLEEP / timedelta(milliseconds=1):
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = 0
        return wait_ms, under
