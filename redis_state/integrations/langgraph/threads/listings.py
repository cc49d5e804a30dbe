"""List checkpoints: of a namespace, of a thread, or of all threads, page by page."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_state import limits
from redis_state.integrations.langgraph.threads.reading import reader_of
from redis_state.integrations.langgraph.threads.stored.places import (
    Target,
    checked_id,
    scope_of,
    split_place,
    target_of,
)
from redis_state.integrations.langgraph.threads.stored.rows import FoundCheckpoint, Rows
from redis_state.integrations.langgraph.threads.threads import Threads

Filter: TypeAlias = Mapping[str, Any] | None
Reader: TypeAlias = Callable[[FoundCheckpoint], CheckpointTuple]
# What was found in one step, and what unpacks it.
Page: TypeAlias = tuple[list[FoundCheckpoint], Reader]
Pages: TypeAlias = AsyncGenerator[Page]
_Each: TypeAlias = AsyncGenerator[tuple[FoundCheckpoint, Reader]]

# Checkpoints that are looked at in one step, and read whole in one.
_PAGE = 100
_WHOLE = 20


class Listings:
    """The listings of checkpoints, with one serializer.

    Each generator is closed where it is left. One that the garbage collector finds costs the loop a
    task, and a call of the system.
    """

    def __init__(self, threads: Threads, rows: Rows) -> None:
        self._threads = threads
        self._rows = rows

    async def items(
        self,
        config: RunnableConfig | None,
        *,
        wanted: Filter,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints that match."""
        found = self.pages(config, wanted=wanted, before=before, limit=limit)
        async with aclosing(found) as pages:
            async for page, read in pages:
                for each in page:
                    yield read(each)

    async def pages(
        self,
        config: RunnableConfig | None,
        *,
        wanted: Filter,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Pages:
        """Yield checkpoints that match, as they are found. They can be unpacked in any thread."""
        left = None if limit is None else limits.count("limit", limit, least=0)
        if left == 0:
            return
        found = (
            self._all(wanted, before) if config is None else self._of(config, wanted, before, left)
        )
        async with aclosing(found) as pages:
            async for page, read in pages:
                part = page[:left]
                yield part, read
                left = None if left is None else left - len(part)
                if left == 0:
                    return

    async def _all(self, wanted: Filter, before: RunnableConfig | None) -> Pages:
        """Yield the checkpoints of all threads; those behind ``before``, if it names a thread."""
        after: str | None = None
        if before is not None and "thread_id" in before.get("configurable", {}):
            after = target_of(before).thread_id
            first = RunnableConfig(configurable={"thread_id": after})
            async with aclosing(self._of(first, wanted, before)) as pages:
                async for page in pages:
                    yield page
        async with aclosing(self._threads.threads(after)) as threads:
            async for thread_id in threads:
                config = RunnableConfig(configurable={"thread_id": thread_id})
                found = self._of(config, wanted, before if after is None else None)
                async with aclosing(found) as pages:
                    async for page in pages:
                        yield page

    def _of(
        self,
        config: RunnableConfig,
        wanted: Filter,
        before: RunnableConfig | None,
        limit: int | None = None,
    ) -> Pages:
        """Return the checkpoints of one thread; of all namespaces the newest first.

        ``limit`` is how many the caller takes at most. It makes the first page.
        """
        target = target_of(config)
        bound = None
        if before is not None:
            given = (before.get("configurable") or {}).get("checkpoint_id") or None
            bound = None if given is None else checked_id("before.checkpoint_id", given)
        if target.checkpoint_id is not None:
            return self._one(target, wanted, bound)
        if target.namespace is not None:
            scope = scope_of(target.namespace)
            return self._walk(target.thread_id, scope, wanted, bound, limit)
        return self._merged(target.thread_id, wanted, bound)

    async def _one(self, target: Target, wanted: Filter, bound: str | None) -> Pages:
        """Yield the checkpoints of one id; in each namespace that has it, if none is named."""
        id_ = target.checkpoint_id or ""
        if bound is not None and id_ >= bound:
            return
        places = [target.place]
        if target.namespace is None:
            newest = await self._threads.namespaces(target.thread_id)
            places = [f"{split_place(place)[0]}{id_}".encode() for place in newest]
        async with aclosing(self._read(target.thread_id, places)) as parts:
            async for found in parts:
                if self._is_wanted(target.thread_id, found.row, wanted):
                    yield [found], reader_of(target.thread_id, self._rows)

    async def _merged(self, thread_id: str, wanted: Filter, bound: str | None) -> Pages:
        """Merge the namespaces of a thread. One is opened once its newest is due."""
        newest = [split_place(place) for place in await self._threads.namespaces(thread_id)]
        waiting = sorted(((id_, scope) for scope, id_ in newest))
        open_: list[tuple[_Falling, int, FoundCheckpoint, Reader, _Each]] = []
        opened = 0
        async with AsyncExitStack() as walks:
            while waiting or open_:
                if waiting and (not open_ or waiting[-1][0] >= open_[0][0].id):
                    _, scope = waiting.pop()
                    opened += 1
                    walk, place = _each(self._walk(thread_id, scope, wanted, bound)), opened
                    await walks.enter_async_context(aclosing(walk))
                else:
                    _, place, found, read, walk = heapq.heappop(open_)
                    yield [found], read
                following = await anext(walk, None)
                if following is not None:
                    found, read = following
                    _, id_ = split_place(found.place)
                    heapq.heappush(open_, (_Falling(id_), place, found, read, walk))

    async def _walk(
        self,
        thread_id: str,
        scope: str,
        wanted: Filter,
        bound: str | None,
        limit: int | None = None,
    ) -> Pages:
        """Yield the checkpoints of a namespace, the newest first."""
        if wanted:
            async with aclosing(self._filtered(thread_id, scope, wanted, bound)) as pages:
                async for each in pages:
                    yield each
            return
        size = min(limit or 1, _PAGE)
        while bound != "":
            page, bound = await self._threads.whole_page(thread_id, scope, before=bound, size=size)
            yield page, reader_of(thread_id, self._rows)
            # Who wants the first one only is not made wait for others.
            size = min(size * 4, _PAGE)

    async def _filtered(
        self, thread_id: str, scope: str, wanted: Filter, bound: str | None
    ) -> Pages:
        """Yield the checkpoints of a namespace that match. Only these are read whole."""
        while page := await self._threads.page(thread_id, scope, before=bound, size=_PAGE):
            bound = split_place(page[-1][0])[1]
            places = [
                place for place, row in page if row and self._is_wanted(thread_id, row, wanted)
            ]
            for first in range(0, len(places), _WHOLE):
                found = self._read(thread_id, places[first : first + _WHOLE])
                async with aclosing(found) as part:
                    async for each in part:
                        yield [each], reader_of(thread_id, self._rows)

    async def _read(
        self, thread_id: str, places: Sequence[bytes]
    ) -> AsyncGenerator[FoundCheckpoint]:
        """Yield those that are there."""
        async with aclosing(self._threads.read(thread_id, places)) as parts:
            async for found in parts:
                if found is not None:
                    yield found

    def _is_wanted(self, thread_id: str, row: bytes, wanted: Filter) -> bool:
        of = f"thread {thread_id!r}"
        return not wanted or _matches(self._rows.read_row(row, of=of)[2], wanted)


class _Falling:
    """An id that comes first if it is higher."""

    __slots__ = ("id",)

    def __init__(self, id_: str) -> None:
        self.id = id_

    def __lt__(self, other: _Falling) -> bool:
        return self.id > other.id


def _matches(metadata: Mapping[str, Any], wanted: Filter) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())


async def _each(pages: Pages) -> _Each:
    async with aclosing(pages):
        async for page, read in pages:
            for found in page:
                yield found, read
