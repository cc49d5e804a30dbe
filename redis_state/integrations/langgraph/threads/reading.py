"""Checkpoints as LangGraph has them, made of what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from redis_state.integrations.langgraph.threads.newest import Newest
from redis_state.integrations.langgraph.threads.stored.places import (
    namespace_in,
    read_value_name,
    split_place,
)
from redis_state.integrations.langgraph.threads.stored.rows import FoundCheckpoint, Rows
from redis_state.integrations.langgraph.threads.stored.tails import StoredValue

Version: TypeAlias = str | int | float
# A channel, a version, and the value as the serializer wrote it, if there is one.
_Known: TypeAlias = tuple[str, Version, tuple[str, bytes] | None]

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
    # Of each scope its namespace, and the values that were met, by their names.
    scopes: dict[str, tuple[str, dict[str, _Known]]] = {}

    def read(found: FoundCheckpoint) -> CheckpointTuple:
        head, document, metadata = rows.read_row(found.row, of=of)
        scope, id_ = split_place(found.place)
        if scope not in scopes:
            scopes[scope] = namespace_in(scope), {}
        namespace, known = scopes[scope]
        if head.namespace is not None:
            namespace = head.namespace
        values: dict[str, Any] = {}
        versions: dict[str, Version] = {}
        new: dict[str, StoredValue] = {}
        for name in head.names:
            part = known.get(name)
            if part is None:
                channel, version = read_value_name(name)
                whole, field = f"{scope}{name}".encode(), f"channel_values.{channel}"
                value = rows.found_value(whole, found.values, of=of, field=field)
                typed = None if value is None else (value.kind, value.data)
                part = channel, version, typed
                if value is None or len(value.data) <= _LARGE:
                    known[name] = part
                if newest is not None and value is not None:
                    new[channel] = value
            channel, version, typed = part
            versions[channel] = version
            if typed is not None:
                values[channel] = loads(typed)
        if newest is not None:
            newest.add(thread_id, scope, new)
        document["id"] = id_
        document["channel_values"] = values
        document["channel_versions"] = versions
        return CheckpointTuple(
            config_of(thread_id, namespace, id_),
            document,
            metadata,
            config_of(thread_id, namespace, head.parent) if head.parent else None,
            [write.pending for write in rows.read_writes(found.writes, of=of)]
            if found.writes
            else [],
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
