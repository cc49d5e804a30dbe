"""A PenguiFlow flow as a task of the worker pool: a fresh one for each task, or one that is kept.

    worker = AgentWorker({"review": flow_handler(build_flow)})
    await client.submit("review", {"text": "…"}, session_id="session-1")

The task's input is the payload of the message to the flow. Its result is the payload of the first
message from it. Its trace is ``job-`` and the task's id. A fresh flow shares nothing between tasks.
A kept one saves what is expensive to set up. After some failures in a row it is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary

from penguiflow import FlowError, Headers, Message, PenguiFlow
from penguiflow.metrics import FlowEvent
from penguiflow.registry import ModelRegistry

from redis_state.errors import BackendUnavailable, ConfigError, LeaseLost, RedisStateError
from redis_state.integrations.penguiflow.adapter.private_names import (
    forget_trace,
    let_go,
    when_a_node_ends,
)
from redis_state.integrations.penguiflow.state import PenguiflowStateStore
from redis_state.integrations.penguiflow.tasks import built, job_store, make_store, running
from redis_state.store import RedisStateStore
from redis_state.worker import Handler, TaskCancelled, TaskContext, TaskHandedBack

log: logging.Logger = logging.getLogger(__name__)

FlowFactory = Callable[[PenguiflowStateStore], PenguiFlow | Awaitable[PenguiFlow]]
MakeMessage = Callable[[TaskContext], Message]

_SETTLE_S = 2.0
# What a node's step raises while the server is away, which is not the node's failure.
_AWAY = {"AuthenticationFailed", "BackendUnavailable", "OutcomeUnknown"}


class FlowFailed(RedisStateError):
    """A node failed for good, or ran out of time. ``node`` and ``code`` say which and how."""

    def __init__(self, node: str | None, code: str, kind: str | None) -> None:
        because = "" if kind is None else f" of {kind}"
        super().__init__(f"node {node!r} failed: {code}{because}")
        self.node = node
        self.code = code


def flow_handler(
    build: FlowFactory,
    *,
    registry: ModelRegistry | None = None,
    message: MakeMessage | None = None,
) -> Handler:
    """Make a handler that runs each task in a flow of its own.

    ``build(store)`` makes the flow on ``store``, and ``message`` the message, else one of tenant
    ``default`` with the task's input. A node finds its task by ``task_of(message)``. The first
    message that comes out is the result; a flow that lets none out runs into `task_timeout_s`.
    When the task ends, all that the flow saved has been written. After a crash the task begins
    again with a new flow: what must not happen twice stands in a `keyed_step`. Errors, which fail
    the task: FlowFailed, also for a node on another branch than the result's; those of ``build``.
    """
    make = message or message_of

    async def run_flow(ctx: TaskContext) -> Any:
        async with job_store(ctx) as store:
            live = Live(await built(build(store)), store)
            live.start(registry)
            try:
                result = await live.run(ctx, make(ctx))
                # The last node's own event comes after its result.
                await live.settle()
                return result
            finally:
                await live.stop()

    return run_flow


def kept_flow_handler(
    build: FlowFactory,
    *,
    registry: ModelRegistry | None = None,
    message: MakeMessage | None = None,
    restart_after: int = 5,
) -> KeptFlow:
    """Make a handler that runs all tasks of a process in one flow. See `flow_handler`.

    The flow is built for the first task. After ``restart_after`` failures with no success between
    them the next task has a new one. The old one is stopped when its tasks have ended. A run that
    exceeds its time counts as a failure, a cancelled one does not. When the worker stops, the flow
    stops, and its saves are written. Errors: ConfigError if ``restart_after`` is less than 1.
    """
    if restart_after < 1:
        raise ConfigError("restart_after must be at least 1")
    return KeptFlow(build, registry, message or message_of, restart_after)


def message_of(ctx: TaskContext) -> Message:
    """Make a message of a task's input."""
    return Message(payload=ctx.input, headers=Headers(tenant="default"))


class KeptFlow:
    """A handler with a flow for each worker of its process. ``built`` counts the flows so far."""

    def __init__(
        self,
        build: FlowFactory,
        registry: ModelRegistry | None,
        message: MakeMessage,
        restart_after: int,
    ) -> None:
        self._build = build
        self._registry = registry
        self._message = message
        self._restart_after = restart_after
        self._slots: WeakKeyDictionary[RedisStateStore, _Slot] = WeakKeyDictionary()
        self.built: int = 0

    async def __call__(self, ctx: TaskContext) -> Any:
        """Run a task in the flow that is kept."""
        async with self._lent(ctx.store) as live:
            try:
                result = await live.run(ctx, self._message(ctx))
            except (TaskCancelled, TaskHandedBack, LeaseLost):
                raise
            except asyncio.CancelledError:
                # Out of time, unless the task was cancelled.
                live.failures += ctx.inbox.over is None and not ctx.inbox.cancelled
                raise
            except BaseException:
                live.failures += 1
                raise
            live.failures = 0
            return result

    async def release(self, store: RedisStateStore) -> None:
        """Stop the flow of a worker that stops, and have written what it saved."""
        slot = self._slots.pop(store, None)
        if slot is not None and slot.live is not None:
            await _end(slot.live)

    @asynccontextmanager
    async def _lent(self, store: RedisStateStore) -> AsyncGenerator[Live]:
        slot = self._slots.setdefault(store, _Slot())
        live = await self._current(slot, store)
        live.users += 1
        try:
            yield live
        finally:
            live.users -= 1
            if live.failures >= self._restart_after and slot.live is live:
                slot.live = None
                log.warning("a flow is replaced after %d failures in a row", live.failures)
            if slot.live is not live and not live.users:
                await _end(live)

    async def _current(self, slot: _Slot, store: RedisStateStore) -> Live:
        async with slot.building:
            broken = slot.live if slot.live is not None and slot.live.broken else None
            if broken is not None:
                slot.live = None
                if not broken.users:
                    await _end(broken)
            if slot.live is None:
                own = make_store(store.settings)
                try:
                    live = Live(await built(self._build(own)), own)
                    # Not in this task's context: its nodes would take it for that of all others.
                    Context().run(live.start, self._registry)
                except BaseException:
                    await own.aclose()
                    raise
                slot.live = live
                self.built += 1
            return slot.live


class _Slot:
    """Where a worker's flow is kept."""

    def __init__(self) -> None:
        self.building: asyncio.Lock = asyncio.Lock()
        self.live: Live | None = None


class Live:
    """A flow that runs, and the tasks in it. ``failures`` are those in a row.

    A node ends when it pauses its task, or ends its run in another way. Then the flow is
    ``broken``, and its tasks are handed back, to begin again in another.
    """

    def __init__(self, flow: PenguiFlow, store: PenguiflowStateStore) -> None:
        self.store: PenguiflowStateStore = store
        self.users: int = 0
        self.failures: int = 0
        self.broken: bool = False
        self._flow = flow
        self._failed: dict[str, asyncio.Future[Any]] = {}
        self._strays: asyncio.Task[None] | None = None

    def start(self, registry: ModelRegistry | None) -> None:
        """Start the flow's nodes."""
        self._flow.add_middleware(self._hear)
        self._flow.run(registry=registry)
        when_a_node_ends(self._flow, self._give_up)

    async def run(self, ctx: TaskContext, message: Message) -> Any:
        """Send a message through the flow as a task's; return the payload of what comes out.

        Errors: FlowFailed, TaskCancelled, LeaseLost; those of `running`.
        """
        await ctx.checkpoint()
        with running(ctx) as trace_id:
            self._failed[trace_id] = failed = asyncio.get_running_loop().create_future()
            passing = asyncio.create_task(self._pass(message, trace_id))
            over = asyncio.create_task(ctx.inbox.until_over())
            ends: set[asyncio.Future[Any]] = {passing, over, failed}
            passed = False
            try:
                done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                end = next(each for each in (over, failed, passing) if each in done)
                result: Any = end.result()
                passed = True
            finally:
                del self._failed[trace_id]
                for each in ends:
                    each.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
                if not passed:
                    await self._flow.cancel(trace_id)
                await forget_trace(self._flow, trace_id)
            return result

    async def settle(self) -> None:
        """Wait until what the flow saves now is written, for a while."""
        with suppress(TimeoutError):
            await self.store.drain(_SETTLE_S)

    async def stop(self) -> None:
        """Stop the flow's nodes."""
        if self._strays is not None:
            self._strays.cancel()
            await asyncio.wait({self._strays})
        await self._flow.stop()
        let_go(self._flow)
        # What was let go ends in the loop's next turn, before the loop itself may.
        await asyncio.sleep(0)

    def _give_up(self) -> None:
        self.broken = True
        for failed in self._failed.values():
            if not failed.done():
                failed.set_exception(BackendUnavailable("the flow", "a node of it has ended"))

    async def _pass(self, message: Message, trace_id: str) -> Any:
        await self._flow.emit(message, trace_id=trace_id)
        if self._strays is None:
            self._strays = asyncio.create_task(self._drop_strays(), context=Context())
        found: Any = await self._flow.fetch(trace_id=trace_id)
        if isinstance(found, FlowError):
            raise FlowFailed(found.node_name, found.code, found.exception_type)
        return found.payload if isinstance(found, Message) else found

    async def _drop_strays(self) -> None:
        """Take what comes out beside the results: else the flow would come to a stop."""
        while True:
            await self._flow.fetch()

    async def _hear(self, event: FlowEvent) -> None:
        failed = self._failed.get(event.trace_id or "")
        if event.event_type == "node_failed" and failed is not None and not failed.done():
            about: dict[str, Any] = event.extra.get("flow_error") or {}
            kind = about.get("exception_type")
            error: RedisStateError = FlowFailed(event.node_name, str(about.get("code")), kind)
            if kind in _AWAY:
                error = BackendUnavailable(str(self.store.transport.address), str(error))
            failed.set_exception(error)


async def _end(live: Live) -> None:
    await live.settle()
    await live.stop()
    await live.store.aclose()


__all__ = ["FlowFailed", "KeptFlow", "flow_handler", "kept_flow_handler"]
