"""RedisSaver: the checkpoints of LangGraph on plain Redis or Valkey."""

from __future__ import annotations

import random
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_state import limits
from redis_state.integrations.langgraph.importing.importer import Importing, ThreadImport
from redis_state.integrations.langgraph.importing.sources import ThreadSource
from redis_state.integrations.langgraph.store_thread import OnStoreThread, StoreThread
from redis_state.integrations.langgraph.threads.checkpoints import Checkpoints
from redis_state.integrations.langgraph.threads.claims import ThreadClaim, ThreadClaims
from redis_state.integrations.langgraph.threads.housekeeping import Housekeeping
from redis_state.integrations.langgraph.threads.listings import Items
from redis_state.integrations.langgraph.threads.reading import Version
from redis_state.integrations.langgraph.threads.stored.rows import Rows
from redis_state.integrations.langgraph.threads.threads import Threads
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms

T = TypeVar("T")

# Versions are numbers that grow by a random step: two branches of a thread never give one to two
# values. In 64 bits there is room for 100 million steps.
_STEP = 2**36


class RedisSaver(OnStoreThread, BaseCheckpointSaver[Any]):
    """Keep the checkpoints of graphs in Redis or Valkey, for any number of processes.

    One object has both colours, since a compiled graph has one saver: ``ainvoke`` calls the methods
    that begin with ``a``, ``invoke`` the others. These block, from any thread. They run in an event
    loop of their own, which ends with `close`.

    Each call is one atomic step. What a call returned for is stored, as the store's guarantee says.
    A call whose reply was lost is repeated without doubling its effect. A thread lives
    ``lifetime`` after its last write, else `graph_threads_ttl`. Values, writes and metadata are
    sealed by the store's codec; names of channels, ids and numbers of versions are not.

    Errors: InvalidField for a config without a thread's id; LeaseLost and ThreadClaimed for writes
    into a thread that another process has claimed; PayloadTooLarge; PayloadUnreadable.
    """

    def __init__(
        self,
        store: RedisStateStore,
        *,
        serde: SerializerProtocol | None = None,
        lifetime: timedelta | None = None,
    ) -> None:
        super().__init__(serde=serde)
        with limits.options():
            given = store.settings.graph_threads_ttl if lifetime is None else lifetime
            ttl_ms = ms(limits.lifetime("lifetime", given))
        self._home = StoreThread(store, "redis_state checkpoints")
        self._threads = Threads(store.base, ttl_ms=ttl_ms)
        self._claims = ThreadClaims(store.base, self._threads, ttl_ms=ttl_ms)
        # A clone of this saver has another serializer.
        self._made: tuple[SerializerProtocol, Checkpoints] | None = None

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        serde: SerializerProtocol | None = None,
        lifetime: timedelta | None = None,
        **options: Any,
    ) -> Self:
        """Make a saver for a server's URL, else for ``REDIS_STATE_URL``.

        Options are the fields of `Settings`. Errors: ConfigError. No I/O.
        """
        store = RedisStateStore.from_url(url, **options)
        made = cls(store, serde=serde, lifetime=lifetime)
        made._home.owned = True
        return made

    @property
    def store(self) -> RedisStateStore:
        """The store that it writes to."""
        return self._home.store

    async def aclose(self) -> None:
        """Disconnect, end the thread of calls that block, and forget all values. Safe to repeat.

        A store that was given stays open: it is the caller's.
        """
        await super().aclose()
        self._threads.newest.clear()

    def close(self) -> None:
        """Wait for running calls, disconnect, end the thread, forget all. Safe to repeat."""
        super().close()
        self._threads.newest.clear()

    # Ownership

    def claim(self, thread_id: str, *, lease_s: float = 30.0) -> ThreadClaim:
        """Claim a thread for what the block does: ``async with saver.claim("t"):``.

        Writes of the block, and of asyncio tasks begun in it, carry the claim. All other writes to
        the thread are refused until it is given back, or has expired: `ThreadClaimed`. The claim
        is renewed meanwhile. Once another process has taken it over, writes of the block are
        refused: LeaseLost. So are those of asyncio tasks that outlive the block. Entering the block
        raises ThreadClaimed if another has the thread.
        """
        return self._claims.claim(thread_id, lease_s=lease_s)

    # For await

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its namespace, or None."""
        return await self._checkpoints.get(config)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the newest first; of all namespaces if the config names none.

        Without a config it yields those of all threads, thread by thread, in the order of their
        ids. Then ``before`` is the config of the last one that the page before yielded. So each
        page costs the same.
        """
        listings = self._checkpoints.listings
        return Items(listings.pages(config, wanted=filter, before=before, limit=limit))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, with the values of the channels that are new. Atomic."""
        return await self._checkpoints.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Add what a task wrote to a checkpoint's pending writes. Atomic."""
        await self._checkpoints.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces. Atomic."""
        await self._housekeeping.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads, with values that no other needs.

        Each step drops up to 200 checkpoints. After a crash, call it again. What the runs put
        meanwhile stays.
        """
        await self._housekeeping.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread, the oldest first.

        The target is a thread meanwhile too, one that is shorter. After a crash, call it again.
        """
        await self._housekeeping.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drop all checkpoints of threads but the newest of each namespace; or all ("delete").

        Ancestors that a delta channel of the newest needs are kept: up to its nearest snapshot.
        Each step drops up to 200 checkpoints. After a crash, call it again. What is put meanwhile
        stays, and so does a checkpoint on which it is put. Errors: LeaseLost, ThreadClaimed;
        Conflict if puts of an older version of this package meet each of 20 tries.
        """
        await self._housekeeping.prune(thread_ids, strategy=strategy)

    async def aimport_thread(
        self, source: ThreadSource, thread_id: str, *, check: bool = False
    ) -> ThreadImport:
        """Copy a thread of another saver, with all namespaces, pending writes, parents and ids.

        The source is what `source_of` makes of a saver. What is there is compared, and left alone:
        a call can be repeated, after a crash too. With ``check`` nothing is written. The writes
        have a claim on the thread. All of it is read again and compared.

        Errors: ThreadClaimed, LeaseLost; InvalidField for ids or versions that cannot be kept;
        CorruptState for values whose types cannot be imported here.
        """
        return await self._importing.run(source, thread_id, write=not check)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return writes and seeds of delta channels: one step for each 500 ancestors."""
        return await self._checkpoints.delta_history(config, channels)

    # For callers that block

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, as `aget_tuple`."""
        return self._run(lambda: self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, as `alist`."""
        listings = self._checkpoints.listings
        pages = listings.pages(config, wanted=filter, before=before, limit=limit)
        try:
            while not pages.over and (page := self._run(pages.following)) is not None:
                found, read = page
                yield from map(read, found)
        finally:
            # Here too if one cannot be read: the error would hold what is open.
            if not pages.over:
                self._home.leave(pages.aclose)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, as `aput`."""
        return self._run(lambda: self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Add what a task wrote, as `aput_writes`."""
        self._run(lambda: self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread, as `adelete_thread`."""
        self._run(lambda: self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, as `adelete_for_runs`."""
        self._run(lambda: self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, as `acopy_thread`."""
        self._run(lambda: self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drop checkpoints of threads, as `aprune`."""
        self._run(lambda: self.aprune(thread_ids, strategy=strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return writes and seeds of delta channels, as `aget_delta_channel_history`."""
        return self._run(lambda: self.aget_delta_channel_history(config=config, channels=channels))

    # For both

    def get_next_version(self, current: Version | None, channel: None) -> Version:  # noqa: ARG002
        """Return a version above the current one, which no other branch of the thread gives.

        A thread that was made by another saver keeps the form of its versions.
        """
        if isinstance(current, str):
            number = int(current.partition(".")[0])
            return f"{number + 1:032}.{random.random():016}"
        return int(current or 0) + random.randint(1, _STEP)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._home.run(work)

    @property
    def _rows(self) -> Rows:
        return Rows(self.serde, self._home.store.base.payloads)

    @property
    def _checkpoints(self) -> Checkpoints:
        made = self._made
        if made is None or made[0] is not self.serde:
            made = self.serde, Checkpoints(self._threads, self._rows, self._claims)
            self._made = made
        return made[1]

    @property
    def _importing(self) -> Importing:
        return Importing(self._threads, self._rows, self._claims)

    @property
    def _housekeeping(self) -> Housekeeping:
        return Housekeeping(self._threads, self._rows, self._claims)
