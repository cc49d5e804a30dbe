"""Move a namespace to another server, while the first is in use, and compare both.

Each pass reads both servers and writes what differs, so it can be repeated: the first while the
source is in use, the last when nobody writes. A key is replaced in one step. A pass
keeps the digest of what it has written beside the key. So a later pass knows what others have
written at the target, and leaves it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from redis_state.errors import ConfigError
from redis_state.migration.content import KINDS, Content
from redis_state.migration.namespace import ServerNamespace
from redis_state.migration.plan import Plan, make_plan
from redis_state.migration.reports import Checked, Copied, Listener, PassProgress
from redis_state.settings import Settings

_AT_ONCE = 64
# Lifetimes are read one after the other, and not by one clock.
_SAME_LIFE_MS = 5_000


class Migration:
    """A namespace that is moved from one server to another, each of any kind.

    The queue of the workers is not moved: tasks that wait in it are queued again by any worker of
    the target. Errors of all methods: NoConnection; ConfigError if both addresses lead to one
    server; StoreFull.
    """

    def __init__(self, source: Settings, target: Settings) -> None:
        if source.namespace != target.namespace:
            raise ConfigError("a migration keeps the namespace: give both settings the same")
        self._source = ServerNamespace(source)
        self._target = ServerNamespace(target)

    async def __aenter__(self) -> Self:
        same = False
        try:
            same = await self._target.is_same_as(self._source)
        except BaseException:
            await self.aclose()
            raise
        if same:
            await self.aclose()
            raise ConfigError(f"{self._source} and {self._target} are the same server")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect from both."""
        await asyncio.gather(self._source.__aexit__(), self._target.__aexit__())

    async def plan(self) -> Plan:
        """Count what would be moved, and ask both servers whether they are fit. Writes no state."""
        return await make_plan(self._source, self._target)

    async def copy(self, *, overwrite: bool = False, listen: Listener | None = None) -> Copied:
        """Copy what differs, and drop what was copied and is gone from the source.

        A crash leaves whole keys, old or new: repeat it. With ``overwrite`` what others have
        written at the target is replaced or deleted; without, it is reported.
        """
        report = Copied()
        walked = 0

        async def copy_one(name: str) -> None:
            nonlocal walked
            walked += 1
            await self._copy(name, report, overwrite=overwrite)
            if listen is not None:
                listen(PassProgress(walked, report.bytes))

        async def drop_one(name: str) -> None:
            if await self._source.has(name):
                return
            there, copied = await self._target.read(name)
            if there is None:
                return
            if overwrite or there.digest() == copied:
                await self._target.drop(name, None if overwrite else copied)
                report.dropped += 1
            else:
                report.conflicts.add(name)

        await _each(self._source, copy_one)
        await _each(self._target, drop_one)
        return report

    async def check(self, *, listen: Listener | None = None) -> Checked:
        """Compare every key of both, by content and lifetime. Writes nothing."""
        report = Checked()
        walked = 0

        async def compare(name: str) -> None:
            nonlocal walked
            walked += 1
            (here, _), (there, _) = await asyncio.gather(
                self._source.read(name), self._target.read(name)
            )
            if here is not None and not _is_ending(here):
                if there is None:
                    report.missing.add(name)
                elif here.digest() != there.digest():
                    report.different.add(name)
                elif not _live_alike(here, there):
                    report.lifetimes.add(name)
                else:
                    report.same += 1
            if listen is not None:
                listen(PassProgress(walked, 0))

        async def find_extra(name: str) -> None:
            if not await self._source.has(name):
                there, copied = await self._target.read(name)
                if there is not None and not _is_ending(there):
                    report.extra.add(name)
                    report.stale += copied is not None

        await _each(self._source, compare)
        await _each(self._target, find_extra)
        return report

    async def finish(
        self, *, delete_source: bool = False, listen: Listener | None = None
    ) -> Checked:
        """Check, and if both are equal delete the notes of the migration.

        From then on a copy leaves alone all that differs. ``delete_source`` deletes the namespace
        at the source too, also if the target has more than it: so it can be repeated after a crash
        that left a part of the source. If they are not equal, nothing is done.
        """
        report = await self.check(listen=listen)
        if report.equal or (delete_source and report.has_all):
            await self._target.drop_all(copies=True)
            if delete_source:
                report.deleted = await self._source.drop_all()
            report.finished = True
        return report

    async def _copy(self, name: str, report: Copied, *, overwrite: bool) -> None:
        (here, _), (there, copied) = await asyncio.gather(
            self._source.read(name), self._target.read(name)
        )
        if here is None:
            return
        if here.kind not in KINDS:
            report.strange.add(name)
            return
        differs = there is None or here.digest() != there.digest()
        if not differs and there is not None and _live_alike(here, there):
            report.same += 1
        elif there is not None and there.digest() != copied and differs and not overwrite:
            report.conflicts.add(name)
        else:
            await self._target.write(name, here)
            report.copied += 1
            report.bytes += here.size


def _live_alike(here: Content, there: Content) -> bool:
    if here.left_ms is None or there.left_ms is None:
        return here.left_ms is there.left_ms
    return abs(here.left_ms - there.left_ms) <= _SAME_LIFE_MS


def _is_ending(content: Content) -> bool:
    """Return whether a key may end on one server before it ends on the other."""
    return content.left_ms is not None and content.left_ms <= _SAME_LIFE_MS


async def _each(namespace: ServerNamespace, work: Callable[[str], Awaitable[None]]) -> None:
    """Do some work for every key of a namespace, many at once. The first error ends it."""
    waiting: asyncio.Queue[str | None] = asyncio.Queue(2 * _AT_ONCE)

    async def serve() -> None:
        while (name := await waiting.get()) is not None:
            await work(name)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(serve())
            async for page in namespace.names():
                for name in page:
                    await waiting.put(name)
            for _ in range(_AT_ONCE):
                await waiting.put(None)
    except BaseExceptionGroup as found:
        raise found.exceptions[0] from None
