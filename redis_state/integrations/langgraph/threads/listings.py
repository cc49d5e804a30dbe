"""List checkpoints: of a namespace, of a thread, or of all threads, page by page."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol, Self, TypeAlias

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
_Generator: TypeAlias = AsyncGenerator[Page]
_Each: TypeAlias = AsyncGenerator[tuple[FoundCheckpoint, Reader]]

# Checkpoints that are looked at in one step, and read whole in one.
_PAGE = 100
_WHOLE = 20


class PageSource(Protocol):
    """What pages come from. It is ``over`` once it is known that none follows."""

    over: bool

    async def following(self) -> Page | None:
        """Return the next page, None behind the last one."""
        ...

    async def aclose(self) -> None:
        """End it. Safe to repeat."""
        ...


class Pages:
    """The pages of a listing, up to as many checkpoints as the caller takes."""

    def __init__(self, source: PageSource, left: int | None) -> None:
        self._source = source
        self._left = left
        self._waits = False
        # Of a listing that is over nothing is open, and `following` has nothing to wait for.
        self.over: bool = left == 0

    async def following(self) -> Page | None:
        """Return the next page, None behind the last one. Any thread can unpack it.

        Errors: RuntimeError while another task waits for it, which would get the same page.
        """
        if self._waits:
            raise RuntimeError("another task waits for the next page of this listing")
        self._waits = True
        try:
            page = None if self.over else await self._source.following()
        finally:
            self._waits = False
        if page is None:
            self.over = True
            return None
        self.over = self._source.over
        if self._left is not None:
            found, read = page
            page = found[: self._left], read
            self._left -= len(page[0])
            if self._left == 0:
                await self.aclose()
        return page

    async def aclose(self) -> None:
        """End it where it is left. Safe to repeat."""
        self.over = True
        await self._source.aclose()


class Items:
    """The checkpoints of pages, each unpacked when it is its turn.

    No generator: the loop would keep a record of each, and end the one that is left with a task.
    """

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._left: Iterator[CheckpointTuple] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CheckpointTuple:
        while True:
            try:
                each = next(self._left, None)
            except BaseException:
                # One cannot be read.
                await self.aclose()
                raise
            if each is not None:
                return each
            page = await self._pages.following()
            if page is None:
                raise StopAsyncIteration
            found, read = page
            self._left = map(read, found)

    async def aclose(self) -> None:
        """End the listing where it is left. Safe to repeat."""
        self._left = iter(())
        await self._pages.aclose()


class Listings:
    """The listings of checkpoints, with one serializer.

    Each generator is closed where it is left. One that the garbage collector finds costs the loop a
    task, and a call of the system. The listing of one namespace has none of its own.
    """

    def __init__(self, threads: Threads, rows: Rows) -> None:
        self._threads = threads
        self._rows = rows

    def pages(
        self,
        config: RunnableConfig | None,
        *,
        wanted: Filter,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Pages:
        """Return the pages of checkpoints that match."""
        left = None if limit is None else limits.count("limit", limit, least=0)
        if config is None or left == 0:
            return Pages(_Generated(self._all(wanted, before)), left)
        return Pages(self._of(config, wanted, before, left), left)

    async def _all(self, wanted: Filter, before: RunnableConfig | None) -> _Generator:
        """Yield the checkpoints of all threads; those behind ``before``, if it names a thread."""
        after: str | None = None
        if before is not None and "thread_id" in before.get("configurable", {}):
            after = target_of(before).thread_id
            first = RunnableConfig(configurable={"thread_id": after})
            async with aclosing(self._of(first, wanted, before)) as source:
                while (page := await source.following()) is not None:
                    yield page
        async with aclosing(self._threads.threads(after)) as threads:
            async for thread_id in threads:
                config = RunnableConfig(configurable={"thread_id": thread_id})
                found = self._of(config, wanted, before if after is None else None)
                async with aclosing(found) as source:
                    while (page := await source.following()) is not None:
                        yield page

    def _of(
        self,
        config: RunnableConfig,
        wanted: Filter,
        before: RunnableConfig | None,
        limit: int | None = None,
    ) -> PageSource:
        """Return the checkpoints of one thread; of all namespaces the newest first.

        ``limit`` is how many the caller takes at most. It makes the first page.
        """
        target = target_of(config)
        bound = None
        if before is not None:
            given = (before.get("configurable") or {}).get("checkpoint_id") or None
            bound = None if given is None else checked_id("before.checkpoint_id", given)
        if target.checkpoint_id is not None:
            return _Generated(self._one(target, wanted, bound))
        if target.namespace is not None:
            scope = scope_of(target.namespace)
            return self._walk(target.thread_id, scope, wanted, bound, limit)
        return _Generated(self._merged(target.thread_id, wanted, bound))

    async def _one(self, target: Target, wanted: Filter, bound: str | None) -> _Generator:
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

    async def _merged(self, thread_id: str, wanted: Filter, bound: str | None) -> _Generator:
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

    def _walk(
        self,
        thread_id: str,
        scope: str,
        wanted: Filter,
        bound: str | None,
        limit: int | None = None,
    ) -> PageSource:
        """Return the checkpoints of a namespace, the newest first."""
        if wanted:
            return _Generated(self._filtered(thread_id, scope, wanted, bound))
        return _NamespacePages(
            self._threads, self._rows, thread_id, scope, bound, min(limit or 1, _PAGE)
        )

    async def _filtered(
        self, thread_id: str, scope: str, wanted: Filter, bound: str | None
    ) -> _Generator:
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


class _NamespacePages:
    """The checkpoints of a namespace below an id, read whole page by page. Nothing is open."""

    def __init__(  # noqa: PLR0917 - where it begins
        self,
        threads: Threads,
        rows: Rows,
        thread_id: str,
        scope: str,
        bound: str | None,
        size: int,
    ) -> None:
        self._threads = threads
        self._rows = rows
        self._thread_id = thread_id
        self._scope = scope
        self._bound = bound
        self._size = size
        self.over: bool = False

    async def following(self) -> Page | None:
        """Return the next page."""
        if self.over:
            return None
        found, self._bound = await self._threads.whole_page(
            self._thread_id, self._scope, before=self._bound, size=self._size
        )
        self.over = self._bound == ""
        # Who wants the first one only is not made wait for others.
        self._size = min(self._size * 4, _PAGE)
        return found, reader_of(self._thread_id, self._rows)

    async def aclose(self) -> None:
        """End it."""
        self.over = True


class _Generated:
    """What a generator yields. It is closed where it is left."""

    def __init__(self, pages: _Generator) -> None:
        self._pages = pages
        self.over: bool = False

    async def following(self) -> Page | None:
        """Return the next page."""
        return await anext(self._pages, None)

    async def aclose(self) -> None:
        """End it."""
        await self._pages.aclose()


class _Falling:
    """An id that comes first if it is higher."""

    __slots__ = ("id",)

    def __init__(self, id_: str) -> None:
        self.id = id_

    def __lt__(self, other: _Falling) -> bool:
        return self.id > other.id


def _matches(metadata: Mapping[str, Any], wanted: Filter) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())


async def _each(source: PageSource) -> _Each:
    async with aclosing(source):
        while (page := await source.following()) is not None:
            found, read = page
            for each in found:
                yield each, read
