"""Processes that kill themselves at each round trip of a submit to a busy session.

This one never runs an event loop. It forks for each part, see `dying`. In each case a
task of the session is paused and has something to undo, and another one waits.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import TaskInProgress
from redis_state.models import TaskStatus
from redis_state.testing import eventually, leaked_keys
from redis_state.worker import TaskClient, TaskContext
from tests.processes.deaths.dying import COUNTED, Death, Dying, die_at_each
from tests.support.processes.pools import SESSION, agent, becomes, client_of, serving, statuses

PHASES = ("enqueue", "reject", "interrupt", "replace")
_LEASE_S = 0.4


class Case(Dying):
    """One death, in a namespace of its own."""

    async def prepare(self, _: int, /) -> None:
        """Have one task paused, and one waiting."""
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            await client.submit("ask", session_id=SESSION, task_id="paused", in_turn=True)
            async with self._serving():
                await becomes(client, "paused", TaskStatus.PAUSED)
            await client.submit("work", session_id=SESSION, task_id="waiting", in_turn=True)

    async def die(self, stated: int, /) -> None:
        """Submit, and die on the way. To return is to survive."""
        Death(self.at, self.edge, stated).plant()
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            COUNTED.set(True)
            try:
                await self._submit(client)
            except TaskInProgress:
                if self.phase != "reject":
                    raise
            COUNTED.set(False)

    async def recover(self, _: int, /) -> list[str]:
        """Repeat the call if it wrote nothing; have a worker do the rest."""
        wanted = {
            "enqueue": ("PAUSED", "COMPLETE", "COMPLETE"),
            "reject": ("PAUSED", "COMPLETE", None),
            "interrupt": ("CANCELLED", "COMPLETE", "COMPLETE"),
            "replace": ("PAUSED", "CANCELLED", "COMPLETE"),
        }[self.phase]
        async with RedisStateStore(self.settings) as store, client_of(store) as client:
            problems: list[str] = []
            if await client.get(SESSION, "new") is None:
                try:
                    await self._submit(client)
                except TaskInProgress as busy:
                    problems += [] if self.phase == "reject" else [f"{busy}"]

            async def found() -> tuple[str | None, ...]:
                states = [await client.get(SESSION, name) for name in ("paused", "waiting", "new")]
                return tuple(None if state is None else state.status.value for state in states)

            async def right() -> bool:
                return await found() == wanted

            async def counted() -> bool:
                counts = {status.value: n for status, n in (await client.count()).items() if n}
                ended = [status for status in wanted if status]
                return counts == {status: ended.count(status) for status in ended}

            async with self._serving():
                try:
                    await eventually(right, "all is as the policy says", timeout_s=60)
                    await eventually(counted, "the index is exact", timeout_s=60)
                except AssertionError as error:
                    problems.append(f"{error}: {await found()}, {await client.count()}")
            runs = [(await statuses(store, name)).count("RUNNING") for name in ("waiting", "new")]
            once = [int(status == "COMPLETE") for status in wanted[1:]]
            problems += [] if runs == once else [f"ran {runs} times"]
            undone = await client.get(SESSION, "paused") if wanted[0] == "CANCELLED" else None
            if undone is not None and "undone: undo#1" not in (undone.error or ""):
                problems.append(f"not undone: {undone.error}")
            return problems + [f"no lifetime: {key}" for key in await leaked_keys(self.settings)]

    async def _submit(self, client: TaskClient) -> None:
        await client.submit(
            "work",
            session_id=SESSION,
            task_id="new",
            on_busy=self.phase,  # type: ignore[arg-type]
        )

    def _serving(self) -> Any:
        worker = agent(self.settings, {"ask": ask, "work": work}, lease_s=_LEASE_S)
        return serving(worker)


async def ask(ctx: TaskContext) -> None:
    """Have something to undo, and pause."""

    def undo() -> None:
        """Undo it."""

    ctx.on_failure(undo, on_cancel=True)
    await ctx.approval("go on?")


async def work(_: TaskContext) -> str:
    """End at once."""
    return "done"


def main(argument: dict[str, Any]) -> list[dict[str, Any]]:
    """Die at each round trip with each policy."""
    return die_at_each(argument, PHASES, Case)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
