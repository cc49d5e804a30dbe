"""Put, get and list checkpoints, as LangGraph has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

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

from redis_state.errors import InvalidField
from redis_state.integrations.langgraph.threads.claims import ThreadClaims
from redis_state.integrations.langgraph.threads.listings import Listings
from redis_state.integrations.langgraph.threads.reading import config_of, reader_of
from redis_state.integrations.langgraph.threads.stored.places import (
    checked_id,
    is_whole,
    split_place,
    target_of,
    value_name,
)
from redis_state.integrations.langgraph.threads.stored.rows import Head, Rows, line_channel
from redis_state.integrations.langgraph.threads.stored.tails import StoredValue
from redis_state.integrations.langgraph.threads.threads import Threads
from redis_state.transport.key_text import escape


class About(NamedTuple):
    """What a checkpoint is: its id, its metadata, and the config of its parent."""

    id: str
    metadata: Mapping[str, Any]
    parent: RunnableConfig | None


class Checkpoints:
    """The checkpoints of threads, with one serializer."""

    def __init__(self, threads: Threads, rows: Rows, claims: ThreadClaims) -> None:
        self._threads = threads
        self._rows = rows
        self._claims = claims
        self.listings: Listings = Listings(threads, rows)

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
                newest.add(thread_id, scope, written)
            break
        return config_of(target.thread_id, namespace, id_)

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
        found = await self._threads.read_one(target.thread_id, target.place)
        if found is not None:
            newest = self._threads.newest if target.checkpoint_id is None else None
            return reader_of(target.thread_id, self._rows, newest)(found)
        if target.checkpoint_id is None:
            self._threads.newest.forget_thread(target.thread_id)
        return None

    async def about(self, config: RunnableConfig) -> About | None:
        """Return what a checkpoint is, or the newest of its namespace, without its values."""
        target = target_of(config)
        found = await self._threads.row(target.thread_id, target.place)
        if found is None:
            return None
        head, _, metadata = self._rows.read_row(found[1], of=f"thread {target.thread_id!r}")
        namespace, id_ = target.namespace or "", split_place(found[0])[1]
        parent = config_of(target.thread_id, namespace, head.parent) if head.parent else None
        return About(id_, metadata, parent)

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
