"""A thread of another saver, between its reading and its writing.

A saver lists the newest checkpoint first, and an import writes the oldest first. So what is read is
kept in a file, as the bytes that are written, and in memory only what finds it again. The bytes are
sealed by the store's codec. The file has no name, and a crash leaves nothing of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, get_checkpoint_id

from redis_state.errors import InvalidField
from redis_state.integrations.langgraph.threads.stored.places import (
    checked_id,
    is_whole,
    scope_of,
    value_name,
)
from redis_state.integrations.langgraph.threads.stored.rows import Head, Rows, line_channel
from redis_state.transport.key_text import escape

_IN_MEMORY = 8 * 1024 * 1024

At = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SpooledWrites:
    """What a task wrote: index, channel and place in the file of each."""

    task: str
    writes: list[tuple[int, str, At]]


@dataclass(frozen=True, slots=True)
class SpooledCheckpoint:
    """A checkpoint: where its row is, the names of its values, and its writes."""

    id: str
    place: bytes
    run: str
    row: At = field(repr=False)
    names: list[str] = field(repr=False)
    writes: list[SpooledWrites] = field(repr=False)


class Spool:
    """The checkpoints of one thread."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by close()
        self._end = 0
        self._values: dict[str, tuple[At, bytes]] = {}
        self._checkpoints: dict[bytes, SpooledCheckpoint] = {}
        self.writes: int = 0

    def __len__(self) -> int:
        return len(self._checkpoints)

    def __contains__(self, place: bytes) -> bool:
        return place in self._checkpoints

    def __iter__(self) -> Iterator[SpooledCheckpoint]:
        """Iterate over the checkpoints, the lowest id first."""
        return iter(sorted(self._checkpoints.values(), key=lambda each: (each.id, each.place)))

    def close(self) -> None:
        """Drop the file."""
        self._file.close()

    def read(self, at: At) -> bytes:
        """Read what was added."""
        start, length = at
        self._file.seek(start)
        return self._file.read(length)

    def value(self, name: str) -> bytes:
        """Read a channel's value."""
        return self.read(self._values[name][0])

    def digest(self, name: str) -> bytes:
        """Return the hash of a channel's value."""
        return self._values[name][1]

    def size(self, each: SpooledCheckpoint, seen: set[str]) -> int:
        """Return how many bytes a checkpoint adds to others, whose values were seen."""
        size = each.row[1] + sum(at[1] for task in each.writes for _, _, at in task.writes)
        size += sum(self._values[name][0][1] for name in each.names if name not in seen)
        seen.update(each.names)
        return size

    def add(self, found: CheckpointTuple) -> None:
        """Add a checkpoint. Errors: InvalidField; PayloadTooLarge."""
        checkpoint = found.checkpoint
        namespace = str(found.config.get("configurable", {}).get("checkpoint_ns") or "")
        scope, id_ = scope_of(namespace), checked_id("checkpoint.id", checkpoint["id"])
        place = f"{scope}{id_}".encode()
        if place in self._checkpoints:
            return
        parent = get_checkpoint_id(found.parent_config) if found.parent_config else None
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        without = values.keys() - versions.keys()
        if without:
            raise InvalidField("channel_values", f"{min(without)!r} has no version")
        metadata = dict(cast("dict[str, Any]", found.metadata or {}))
        run = metadata.get("run_id")
        head = Head(
            None if not parent else checked_id("parent_config", parent),
            run if isinstance(run, str) else "",
            [value_name(channel, version) for channel, version in versions.items()],
            None if is_whole(namespace) else namespace,
        )
        left_out = {"id", "channel_values", "channel_versions"}
        document = {name: part for name, part in checkpoint.items() if name not in left_out}
        names = [
            self._add_value(scope + value_name(channel, versions[channel]), channel, value)
            for channel, value in values.items()
        ]
        row = self._add(self._rows.row(head, document, metadata))
        writes = self._add_writes(found)
        self._checkpoints[place] = SpooledCheckpoint(id_, place, head.run, row, names, writes)

    def _add_value(self, name: str, channel: str, value: Any) -> str:
        data = self._rows.value(value, field=f"channel_values.{channel}")
        digest = self._rows.digest(data)
        known = self._values.get(name)
        if known is None:
            self._values[name] = self._add(data), digest
        elif known[1] != digest and not self._rows.same_value(
            self.read(known[0]), data, of="a checkpoint"
        ):
            raise InvalidField(
                f"channel_versions.{channel}", "two checkpoints have two values for one version"
            )
        return name

    def _add_writes(self, found: CheckpointTuple) -> list[SpooledWrites]:
        """Add pending writes. A saver gives their order, and neither index nor path of the task.

        Indexes count those of the task that are not special, as LangGraph's do. A path is made up
        only where the tasks do not stand in the order of their ids.
        """
        pending = found.pending_writes or []
        tasks: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in pending:
            tasks.setdefault(task, []).append((channel, value))
        ordered = list(tasks) == sorted(tasks)
        made: list[SpooledWrites] = []
        for number, (task, writes) in enumerate(tasks.items()):
            count, flat = 0, list[tuple[int, str, At]]()
            for channel, value in writes:
                index = WRITES_IDX_MAP.get(channel, count)
                count += channel not in WRITES_IDX_MAP
                path = "" if ordered else f"~{number:08}"
                data = self._rows.write((channel, value), task=task, path=path)
                flat.append((index, line_channel(channel), self._add(data)))
            self.writes += len(flat)
            made.append(SpooledWrites(escape("task_id", task), flat))
        return made

    def _add(self, data: bytes) -> At:
        at = self._end, len(data)
        self._file.seek(self._end)
        self._file.write(data)
        self._end += len(data)
        return at
