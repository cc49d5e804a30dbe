"""Put, get and list checkpoints, as LangGraph has them."""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_metadata,
)

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.integrations.langgraph.claims import ThreadClaims
from redis_state.integrations.langgraph.places import (
    Target,
    checked_id,
    is_whole,
    namespace_in,
    read_value_name,
    scope_of,
    split_place,
    target_of,
    value_name,
)
from redis_state.integrations.langgraph.rows import Head, Rows, line_channel
from redis_state.integrations.langgraph.tails import StoredValue
from redis_state.integrations.langgraph.threads import FoundCheckpoint, Threads
from redis_state.transport.key_text import escape

Version: TypeAlias = str | int | float
Filter: TypeAlias = Mapping[str, Any] | None

# Checkpoints that are looked at in one step, and read whole in one.
_PAGE = 100
_WHOLE = 20
# What is larger is unpacked again rather than held for a page.
_LARGE = 1 << 16


class Checkpoints:
    """The checkpoints of threads, with one serializer."""

    def __init__(self, threads: Threads, rows: Rows, claims: ThreadClaims) -> None:
        self._threads = threads
        self._rows = rows
        self._claims = claims

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint."""
        target = target_of(config)
        namespace = target.namespace or ""
        id_ = checked_id("checkpoint.id", checkpoint["id"])
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        left_out = {"id", "channel_values", "channel_versions"}
        document = {name: part for name, part in checkpoint.items() if name not in left_out}
        whole = get_checkpoint_metadata(config, metadata)
        run = whole.get("run_id")
        head = Head(
            target.checkpoint_id,
            run if isinstance(run, str) else "",
            [value_name(channel, version) for channel, version in versions.items()],
            None if is_whole(namespace) else namespace,
        )
        row = self._rows.row(head, document, cast("Mapping[str, Any]", whole))
        newest, thread_id, scope = self._threads.newest, target.thread_id, target.scope
        # What is not new was put with the parent.
        for parent, channels in ((target.checkpoint_id, new_versions), (None, versions)):
            written: dict[str, StoredValue] = {}
            for channel, version in channels.items():
                if channel in values:
                    written[channel] = self._rows.stored_value(
                        f"{scope}{value_name(channel, version)}".encode(),
                        values[channel],
                        field=f"channel_values.{channel}",
                        base=newest.of(thread_id, scope, channel) if parent else None,
                    )
            kept = await self._threads.put(
                thread_id,
                f"{scope}{id_}".encode(),
                row,
                [part for value in written.values() for part in (value.name, value.stored)],
                parent=f"{scope}{parent}".encode() if parent else b"",
                run=head.run,
                claim=self._claims.held(thread_id),
            )
            if kept is None:
                newest.forget_thread(thread_id)
                continue
            if kept == 0:
                for channel, value in written.items():
                    newest.add(thread_id, scope, channel, value)
            break
        return _config(target.thread_id, namespace, id_)

    async def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> None:
        """Add what a task wrote to a checkpoint's pending writes."""
        target = target_of(config)
        if target.checkpoint_id is None:
            raise InvalidField("configurable.checkpoint_id", "is missing")
        if not writes:
            return
        flat: list[bytes] = []
        for place, write in enumerate(writes):
            index = WRITES_IDX_MAP.get(write[0], place)
            data = self._rows.write(write, task=task, path=path)
            flat += b"%d" % index, line_channel(write[0]).encode(), data
        await self._threads.put_writes(
            target.thread_id,
            target.place,
            escape("task_id", task),
            flat,
            claim=self._claims.held(target.thread_id),
        )

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its namespace, or None."""
        target = target_of(config)
        async for found in self._threads.read(target.thread_id, [target.place]):
            read = self._reader(target.thread_id, remembers=target.checkpoint_id is None)
            if found is not None:
                return read(found)
        if target.checkpoint_id is None:
            self._threads.newest.forget_thread(target.thread_id)
        return None

    async def list(
        self,
        config: RunnableConfig | None,
        *,
        wanted: Filter,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints that match."""
        left = None if limit is None else limits.count("limit", limit, least=0)
        if left == 0:
            return
        found = (
            self._all(wanted, before) if config is None else self._of(config, wanted, before, left)
        )
        async for each in found:
            yield each
            left = None if left is None else left - 1
            if left == 0:
                return

    async def delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what ancestors wrote to channels, and the nearest values of these."""
        if not channels:
            return {}
        target = target_of(config)
        place = target.place
        if target.checkpoint_id is None:
            newest = await self._threads.page(target.thread_id, target.scope, before=None, size=1)
            place = newest[0][0] if newest else b""
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        written = {channel.encode(): line_channel(channel).encode() for channel in channels}
        of = f"thread {target.thread_id!r}"
        async for flat, names, values in self._threads.deltas(target.thread_id, place, written):
            for write in reversed(self._rows.read_writes(flat, of=of)):
                writes[write.channel].append(write.pending)
            for raw, name in names.items():
                channel = raw.decode()
                value = self._rows.found_value(
                    name, values, of=of, field=f"channel_values.{channel}"
                )
                if value is not None:
                    seeds[channel] = self._rows.loads((value.kind, value.data))
        return {
            channel: DeltaChannelHistory(writes=found[::-1], seed=seeds[channel])
            if channel in seeds
            else DeltaChannelHistory(writes=found[::-1])
            for channel, found in writes.items()
        }

    async def _all(
        self,
        wanted: Filter,
        before: RunnableConfig | None,
    ) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of all threads; those behind ``before``, if it names a thread."""
        after: str | None = None
        if before is not None and "thread_id" in before.get("configurable", {}):
            after = target_of(before).thread_id
            first = RunnableConfig(configurable={"thread_id": after})
            async for found in self._of(first, wanted, before):
                yield found
        async for thread_id in self._threads.threads(after):
            config = RunnableConfig(configurable={"thread_id": thread_id})
            async for found in self._of(config, wanted, before if after is None else None):
                yield found

    def _of(
        self,
        config: RunnableConfig,
        wanted: Filter,
        before: RunnableConfig | None,
        limit: int | None = None,
    ) -> AsyncGenerator[CheckpointTuple]:
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

    async def _one(
        self,
        target: Target,
        wanted: Filter,
        bound: str | None,
    ) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of one id; in each namespace that has it, if none is named."""
        id_ = target.checkpoint_id or ""
        if bound is not None and id_ >= bound:
            return
        places = [target.place]
        if target.namespace is None:
            newest = await self._threads.namespaces(target.thread_id)
            places = [f"{split_place(place)[0]}{id_}".encode() for place in newest]
        async for found in self._threads.read(target.thread_id, places):
            if found is not None:
                made = self._tuple(target.thread_id, found)
                if _matches(made.metadata, wanted):
                    yield made

    async def _merged(
        self,
        thread_id: str,
        wanted: Filter,
        bound: str | None,
    ) -> AsyncGenerator[CheckpointTuple]:
        """Merge the namespaces of a thread. One is opened once its newest is due."""
        newest = [split_place(place) for place in await self._threads.namespaces(thread_id)]
        waiting = sorted(((id_, scope) for scope, id_ in newest))
        open_: list[tuple[_Falling, int, CheckpointTuple, AsyncGenerator[CheckpointTuple]]] = []
        opened = 0
        while waiting or open_:
            if waiting and (not open_ or waiting[-1][0] >= open_[0][0].id):
                _, scope = waiting.pop()
                opened += 1
                walk, place = self._walk(thread_id, scope, wanted, bound), opened
            else:
                _, place, found, walk = heapq.heappop(open_)
                yield found
            following = await anext(walk, None)
            if following is not None:
                id_ = following.checkpoint["id"]
                heapq.heappush(open_, (_Falling(id_), place, following, walk))

    async def _walk(
        self,
        thread_id: str,
        scope: str,
        wanted: Filter,
        bound: str | None,
        limit: int | None = None,
    ) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of a namespace, the newest first."""
        if wanted:
            async for found in self._filtered(thread_id, scope, wanted, bound):
                yield found
            return
        size = min(limit or 1, _PAGE)
        while bound != "":
            page, bound = await self._threads.whole_page(thread_id, scope, before=bound, size=size)
            read = self._reader(thread_id)
            for each in page:
                yield read(each)
            # Who wants the first one only is not made wait for others.
            size = min(size * 4, _PAGE)

    async def _filtered(
        self, thread_id: str, scope: str, wanted: Filter, bound: str | None
    ) -> AsyncGenerator[CheckpointTuple]:
        """Yield the checkpoints of a namespace that match. Only these are read whole."""
        of = f"thread {thread_id!r}"
        while page := await self._threads.page(thread_id, scope, before=bound, size=_PAGE):
            bound = split_place(page[-1][0])[1]
            places = [
                place
                for place, row in page
                if row and _matches(self._rows.read_row(row, of=of)[2], wanted)
            ]
            for first in range(0, len(places), _WHOLE):
                part = places[first : first + _WHOLE]
                async for found in self._threads.read(thread_id, part):
                    if found is not None:
                        yield self._tuple(thread_id, found)

    def _tuple(self, thread_id: str, found: FoundCheckpoint) -> CheckpointTuple:
        return self._reader(thread_id)(found)

    def _reader(
        self, thread_id: str, *, remembers: bool = False
    ) -> Callable[[FoundCheckpoint], CheckpointTuple]:
        """Return what reads checkpoints of a thread. A value that several have is unpacked once.

        What is remembered may be continued by values of this process.
        """
        of = f"thread {thread_id!r}"
        rows, loads, newest = self._rows, self._rows.loads, self._threads.newest
        known: dict[tuple[str, str], tuple[str, Version, tuple[str, bytes] | None]] = {}

        def read(found: FoundCheckpoint) -> CheckpointTuple:
            head, document, metadata = rows.read_row(found.row, of=of)
            scope, id_ = split_place(found.place)
            namespace = namespace_in(scope) if head.namespace is None else head.namespace
            values: dict[str, Any] = {}
            versions: dict[str, Version] = {}
            for name in head.names:
                part = known.get((scope, name))
                if part is None:
                    channel, version = read_value_name(name)
                    whole, field = f"{scope}{name}".encode(), f"channel_values.{channel}"
                    value = rows.found_value(whole, found.values, of=of, field=field)
                    typed = None if value is None else (value.kind, value.data)
                    part = channel, version, typed
                    if value is None or value.size <= _LARGE:
                        known[scope, name] = part
                    if value is not None and remembers:
                        newest.add(thread_id, scope, channel, value)
                channel, version, typed = part
                versions[channel] = version
                if typed is not None:
                    values[channel] = loads(typed)
            document["id"] = id_
            document["channel_values"] = values
            document["channel_versions"] = versions
            return CheckpointTuple(
                _config(thread_id, namespace, id_),
                cast("Checkpoint", document),
                cast("CheckpointMetadata", metadata),
                _config(thread_id, namespace, head.parent) if head.parent else None,
                [write.pending for write in rows.read_writes(found.writes, of=of)],
            )

        return read


class _Falling:
    """An id that comes first if it is higher."""

    __slots__ = ("id",)

    def __init__(self, id_: str) -> None:
        self.id = id_

    def __lt__(self, other: _Falling) -> bool:
        return self.id > other.id


def _matches(metadata: Mapping[str, Any], wanted: Filter) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    # A literal costs less than a call of the type.
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
