"""Which threads there are: the list of all threads, and those of a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import lru_cache, partial
from typing import TypeVar

from redis_state.integrations.langgraph.threads.lately import Lately
from redis_state.integrations.langgraph.threads.stored.places import keys_of
from redis_state.primitives.listing import ShardedListing
from redis_state.scripts import GraphKeys, GraphListing, topic_bytes, topic_text
from redis_state.stores.base import Base
from redis_state.transport.key_text import LONGEST_REMEMBERED
from redis_state.transport.keys import GRAPH_SHARDS, graph_shard

_THREADS = 100
_KEYS_REMEMBERED = 1024

T = TypeVar("T")


class ThreadList:
    """List threads as they are written, and find them again."""

    def __init__(self, base: Base, *, ttl_ms: int) -> None:
        self._base = base
        self.ttl_ms: int = ttl_ms
        self._listed = Lately(ttl_ms)
        keys = base.keys
        self._made_keys = partial(keys_of, keys)
        # Of the last threads: each operation names them again.
        self._remembered_keys = lru_cache(maxsize=_KEYS_REMEMBERED)(self._made_keys)
        self._listing = ShardedListing(
            base.scripts,
            [
                GraphListing(keys.graph_threads(n), keys.graph_expiries(n))
                for n in range(GRAPH_SHARDS)
            ],
            size=_THREADS,
        )

    def keys(self, thread_id: str) -> GraphKeys:
        """Return a thread's keys."""
        is_short = len(thread_id) <= LONGEST_REMEMBERED
        return (self._remembered_keys if is_short else self._made_keys)(thread_id)

    async def list_run(self, run: str, thread_id: str) -> None:
        """Record that a run has checkpoints in a thread, if it is one. A put of these does it too.

        Who calls several puts at once does it before them: one that waits for it loses its turn.
        """
        if run and not self._listed.has((run, thread_id)):
            await self._base.scripts.add_member(
                self._base.keys.graph_run(run), member=thread_id, ttl_ms=self._listed.longer_ms
            )
            self._listed.add((run, thread_id))

    async def runs(self, run_id: str) -> list[str]:
        """List the threads in which a run may have checkpoints."""
        return await self._base.records.members(self._base.keys.graph_run(run_id))

    async def listed(self, thread_id: str, write: Callable[[], Awaitable[T]]) -> T:
        """List a thread, which is written, and return what the write does."""
        done = await self._listing.around(
            graph_shard(thread_id),
            topic_bytes(thread_id),
            write,
            ttl_ms=self._listed.longer_ms,
        )
        self._listed.add(thread_id)
        return done

    async def threads(self, after: str | None) -> AsyncGenerator[str]:
        """Yield the ids of all threads in the order of their bytes, behind one of them.

        A page costs each shard one call. Entries of threads that are gone are removed.
        """
        start = b"-" if after is None else b"(" + topic_bytes(after)
        exists = self._base.scripts.transport.commands.exists
        async with aclosing(self._listing.pages(start)) as pages:
            async for page in pages:
                for shard, thread, stamp in page:
                    thread_id = topic_text(thread) or ""
                    if await exists(self.keys(thread_id).thread):
                        yield thread_id
                    else:
                        await self._listing.unlist(shard, thread, stamp)
