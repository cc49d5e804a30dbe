"""Writers that go on while their server is lost, and what must be true of it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.support.samples import update as make_update


@dataclass
class Load:
    """Writers, each of its own session in a fixed order, and one who watches the first."""

    store: RedisStateStore
    sessions: list[str]
    watching: bool = True
    # How often a failover may have taken back the last rows: a server that is not asked to wait for
    # its replicas answers before they have a row.
    failovers: int = 0
    pause_s: float = 0.1
    acknowledged: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    watched: list[str] = field(default_factory=list[str])
    over: bool = False
    writing: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def more(self) -> None:
        """Wait until every writer has written some more."""
        before = {session: len(done) for session, done in self.acknowledged.items()}
        await eventually(
            lambda: (
                all(len(self.acknowledged[each]) > n + 5 for each, n in before.items())
                or any(task.done() for task in self.writing)
            ),
            "all have written",
            timeout_s=60,
        )
        self._all_alive()

    def _all_alive(self) -> None:
        ended = [task for task in self.writing if task.done()]
        assert not ended, f"{len(ended)} writers have ended: {ended[0].exception()!r}"

    def count(self) -> int:
        """Count what was acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    async def kept(self, session_id: str) -> list[str]:
        """Read all update ids of a session."""
        found: list[str] = []
        page = await self.store.read_updates(session_id)
        while page.entries:
            found += [update.update_id for update in page.values]
            page = await self.store.read_updates(session_id, after=page.cursor)
        return found

    async def check(self) -> None:
        """All that was acknowledged is there, once and in order, and was watched."""
        for session in self.sessions:
            kept, written = await self.kept(session), self.acknowledged[session]
            assert in_order(kept, written), f"{session}: {len(kept)} rows kept of {len(written)}"
            gaps = _gaps(kept, written)
            assert gaps <= self.failovers, f"{session}: {len(kept)} rows kept of {len(written)}"
        if not self.watching:
            return
        first = self.sessions[0]
        kept, written = await self.kept(first), self.acknowledged[first]
        await eventually(lambda: set(kept) <= set(self.watched), "all that is kept was watched")
        assert in_order(self.watched, written)

    async def _write(self, session_id: str) -> None:
        done = self.acknowledged[session_id]
        while not self.over:
            update_id = f"{session_id}-{len(done)}"
            await self.store.save_update(make_update(update_id, session_id=session_id))
            done.append(update_id)
            await asyncio.sleep(self.pause_s)

    async def _watch(self, session_id: str) -> None:
        async with aclosing(self.store.watch_updates(session_id)) as entries:
            async for entry in entries:
                self.watched.append(entry.value.update_id)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Load]:
        """Write and watch for the length of the block, then check. Any caller's error is raised."""
        self.acknowledged = {session: [] for session in self.sessions}
        watching = asyncio.create_task(self._watch(self.sessions[0]))
        self.writing = writing = [
            asyncio.create_task(self._write(session)) for session in self.sessions
        ]
        try:
            await self.more()
            yield self
            self.over = True
            await asyncio.gather(*writing)
            await self.check()
        finally:
            for task in (watching, *writing):
                task.cancel()
            await asyncio.wait({watching, *writing})


def in_order(some: list[str], written: list[str]) -> bool:
    """Tell whether these are some of what was written, each once and in its order."""
    among = set(some)
    return some == [each for each in written if each in among]


def _gaps(kept: list[str], written: list[str]) -> int:
    among = set(kept)
    here = [each in among for each in written]
    return sum(before and not now for before, now in pairwise([True, *here]))


@asynccontextmanager
async def tasks(store: RedisStateStore) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """Serve a pool; give what submits a task and waits for its end. Without arq it does nothing."""
    if find_spec("arq") is None:

        async def nothing() -> None:
            pass

        yield nothing
        return
    from tests.support.processes.pools import SESSION, becomes, pool  # noqa: PLC0415 - needs the extra

    async def work(context: Any) -> Any:
        return await context.step("work", lambda: "done")

    async with pool(store, {"work": work}) as client:

        async def run_one() -> None:
            task = await client.submit("work", "x", session_id=SESSION)
            await becomes(client, task, TaskStatus.COMPLETE)

        yield run_one


def load(
    store: RedisStateStore,
    *,
    writers: int,
    name: str = "session",
    watching: bool = True,
    failovers: int = 0,
) -> Load:
    """Make a load of so many writers, and a watcher: he may see rows that a failover takes back."""
    sessions = [f"{name}{number}" for number in range(writers)]
    return Load(store, sessions, watching, failovers)
