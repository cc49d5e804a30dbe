"""Checkpoints as LangGraph has them, made of what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from redis_state.integrations.langgraph.threads.newest import Newest
from redis_state.integrations.langgraph.threads.stored.places import (
    namespace_in,
    read_value_name,
    split_place,
)
from redis_state.integrations.langgraph.threads.stored.rows import FoundCheckpoint, Rows

Version: TypeAlias = str | int | float

# What is larger is unpacked again rather than held for a page.
_LARGE = 1 << 16


def reader_of(
    thread_id: str, rows: Rows, newest: Newest | None = None
) -> Callable[[FoundCheckpoint], CheckpointTuple]:
    """Return what reads checkpoints of a thread. A value that several have is unpacked once.

    What ``newest`` is given may be continued by values of this process.
    """
    of = f"thread {thread_id!r}"
    loads = rows.loads
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
                if value is not None and newest is not None:
                    newest.add(thread_id, scope, channel, value)
            channel, version, typed = part
            versions[channel] = version
            if typed is not None:
                values[channel] = loads(typed)
        document["id"] = id_
        document["channel_values"] = values
        document["channel_versions"] = versions
        return CheckpointTuple(
            config_of(thread_id, namespace, id_),
            cast("Checkpoint", document),
            cast("CheckpointMetadata", metadata),
            config_of(thread_id, namespace, head.parent) if head.parent else None,
            [write.pending for write in rows.read_writes(found.writes, of=of)],
        )

    return read


def config_of(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    """Return the config that names a checkpoint."""
    # A literal costs less than a call of the type.
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
