"""Tasks of an A2A server: their state, what was said and made, and the updates that tell it.

A message or an artifact is an entry of its own, so that writers never overwrite one another. What
is added to an artifact stands as it came; `join_artifacts` puts the parts together when read.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast

from redis_state.errors import InvalidField
from redis_state.primitives.log import Bounds, Log
from redis_state.primitives.record import new_write_id
from redis_state.primitives.signal import Row
from redis_state.scripts import ReplyCode, raw
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object, pack, unpack
from redis_state.stores.a2a_repeats import repeated
from redis_state.stores.base import Base, ms
from redis_state.stores.tasks import microseconds
from redis_state.transport.keys import A2AKeys

T = TypeVar("T")

Document = dict[str, Any]

# What one script can be given.
_MOST_ITEMS = 5_000
_PATIENCE_S = 3600.0
_SIZES = {"history": 1, "status": 4, "artifact": 5}


@dataclass(frozen=True, slots=True)
class FoundTask:
    """A task as it stood at one moment; ``cursor`` reads on with what came after it."""

    document: Document = field(repr=False)
    status: Document = field(repr=False)
    final: bool
    metadata: Document = field(repr=False)
    history: Sequence[Document] = field(repr=False)
    artifacts: Sequence[Document] = field(repr=False)
    cursor: str


@dataclass(frozen=True, slots=True)
class TaskChange:
    """One update: its kind (history, status or artifact), what it says, and its cursor.

    A status says itself, whether it is final, and its metadata; an artifact itself, whether it
    continues one, whether it is the last chunk, and its metadata.
    """

    kind: str
    values: Sequence[Any] = field(repr=False)
    cursor: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tasks to list. None and an empty context are no condition."""

    context_id: str | None = None
    state: str | None = None
    updated_after: datetime | None = None


class A2ATaskStore:
    """Create, change, list and follow tasks. False and None tell that there is no such task.

    What the run of a task calls is made again, under its id, for ``patience_s`` while the server
    does not reply: creating, changing, and push configurations.
    """

    def __init__(self, base: Base, *, patience_s: float = 0.0) -> None:
        self._base = base
        self._patience_s = patience_s
        self._ttl_ms = ms(base.settings.a2a_task_ttl)
        self._max_rows = base.settings.max_updates_per_a2a_task

    async def create(
        self,
        task_id: str,
        document: Document,
        *,
        context_id: str,
        state: str,
        status: Document,
        history: Sequence[Document],
        artifacts: Sequence[Document],
    ) -> bool:
        """Create a task; False if there is one of its id. Atomic. Errors: InvalidField."""
        if len(history) + len(artifacts) > _MOST_ITEMS:
            raise InvalidField("history", f"{_MOST_ITEMS} entries at most when it is created")
        fields = _status_fields(state, status, final=False, metadata={})
        create = partial(
            self._base.scripts.create_a2a_task,
            self._keys(task_id),
            {"context": raw(context_id), "document": codec.encode(document), **fields},
            task_id=task_id,
            history=[codec.encode(message) for message in history],
            artifacts=[pack([artifact, False]) for artifact in artifacts],
            write=new_write_id(),
            ttl_ms=self._ttl_ms,
        )
        reply = await self._repeat(create)
        return reply.word is ReplyCode.OK

    async def add_message(self, task_id: str, message: Document) -> bool:
        """Append a message to the history. Not told to followers, as upstream has it."""
        return await self._update(task_id, ["history"], place="history", item=codec.encode(message))

    async def set_status(
        self, task_id: str, *, state: str, status: Document, final: bool, metadata: Document
    ) -> bool:
        """Set the status and tell it. Atomic; the last one wins."""
        return await self._update(
            task_id,
            ["status", status, final, metadata],
            fields=_status_fields(state, status, final=final, metadata=metadata),
        )

    async def add_artifact(
        self,
        task_id: str,
        artifact: Document,
        *,
        append: bool,
        last_chunk: bool,
        metadata: Document,
    ) -> bool:
        """Add an artifact, or its parts to the one of its id, and tell it. Atomic."""
        return await self._update(
            task_id,
            ["artifact", artifact, append, last_chunk, metadata],
            place="artifacts",
            item=pack([artifact, append]),
        )

    async def load(
        self, task_id: str, *, messages: int | None = None, artifacts: bool = True
    ) -> FoundTask | None:
        """Read a task at one moment, with the newest ``messages`` of its history, all for None."""
        reply = await self._base.scripts.read_a2a_task(
            self._keys(task_id),
            messages=-1 if messages is None else max(messages, 0),
            artifacts=artifacts,
        )
        if reply.word is ReplyCode.MISSING:
            return None
        flat, said, added, last, last_ms = reply.facts
        fields = dict(zip(flat[::2], flat[1::2], strict=True))

        def read() -> FoundTask:
            return FoundTask(
                document=as_object(fields[b"document"]),
                status=as_object(fields[b"status"]),
                final=fields[b"final"] == b"1",
                metadata=as_object(fields[b"metadata"]),
                history=[as_object(message) for message in said],
                artifacts=join_artifacts([unpack(entry, 2) for entry in added]),
                cursor=f"{last}-{last_ms}",
            )

        data = fields.get(b"document", b"")
        return self._base.attempt("a2a", f"a2a task {task_id}", data, read)

    async def list(self, wanted: Filter) -> builtins.list[tuple[str, int]]:
        """Return tasks and when they were updated, in microseconds, the last updated first.

        No two were updated at the same one. A filter by context or state looks at every task.
        """
        after = wanted.updated_after
        lowest = "-inf" if after is None else f"({microseconds(after)}"
        commands, index = self._base.scripts.transport.commands, self._base.keys.a2a_tasks()
        flat: builtins.list[bytes] = await commands.zrevrange_from(index, lowest)
        names = [name.decode("utf-8", "surrogatepass") for name in flat[::2]]
        found = builtins.list(zip(names, map(int, map(float, flat[1::2])), strict=True))
        if not wanted.context_id and wanted.state is None:
            return found
        keys = self._base.keys
        pending = [commands.hmget(keys.a2a_task(name), "context", "state") for name in names]
        about = await asyncio.gather(*pending)
        return [
            task
            for task, (context, state) in zip(found, about, strict=True)
            if _matches(wanted, context, state)
        ]

    async def follow(self, task_id: str, *, after: str) -> AsyncGenerator[TaskChange, None]:
        """Yield every update after a cursor once, in order, from whichever process it came.

        Errors: CursorGap, and then `load` tells where the task stands; BackendUnavailable.
        """
        rows = self._log(task_id).follow(after=after, patience_s=_PATIENCE_S)
        async with aclosing(rows):
            async for row in rows:
                told = self._base.read_row("a2a", "a2a update", row, _told)
                if told is not None:
                    yield told

    async def save_push(self, task_id: str, config_id: str, config: Document) -> bool:
        """Save a push configuration; one of the same id is replaced."""
        return await self._write_push(task_id, config_id, codec.encode(config))

    async def delete_push(self, task_id: str, config_id: str) -> bool:
        """Delete a push configuration, if there is one."""
        return await self._write_push(task_id, config_id, b"")

    async def push_configs(self, task_id: str) -> Mapping[str, Document] | None:
        """Return a task's push configurations by id."""
        keys = self._keys(task_id)

        async def read() -> tuple[int, builtins.list[bytes]]:
            commands = self._base.scripts.transport.commands
            there = commands.exists(keys.task)
            flat: builtins.list[bytes] = await commands.hgetall(keys.push)
            return await there, flat

        there, flat = await self._repeat(read)
        if not there:
            return None
        return {
            name.decode("utf-8", "surrogatepass"): as_object(data)
            for name, data in zip(flat[::2], flat[1::2], strict=True)
        }

    async def _write_push(self, task_id: str, config_id: str, config: bytes) -> bool:
        """Write a push configuration; an empty one deletes it."""
        write = partial(
            self._base.scripts.save_a2a_push,
            self._keys(task_id),
            config_id=config_id,
            config=config,
        )
        return (await self._repeat(write)).word is ReplyCode.OK

    async def _update(
        self,
        task_id: str,
        row: Sequence[Any],
        *,
        place: str = "",
        item: bytes = b"",
        fields: Mapping[str, bytes] | None = None,
    ) -> bool:
        update = partial(
            self._base.scripts.update_a2a_task,
            self._keys(task_id),
            fields or {},
            task_id=task_id,
            row=pack(row),
            place=place,
            item=item,
            max_rows=self._max_rows,
            write=new_write_id(),
            ttl_ms=self._ttl_ms,
        )
        return (await self._repeat(update)).word is ReplyCode.OK

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        return await repeated(call, self._base.scripts.transport, self._patience_s)

    def _keys(self, task_id: str) -> A2AKeys:
        keys = self._base.keys
        return A2AKeys(
            keys.a2a_task(task_id),
            keys.a2a_tasks(),
            keys.a2a_history(task_id),
            keys.a2a_artifacts(task_id),
            keys.a2a_push(task_id),
            keys.a2a_updates(task_id),
        )

    def _log(self, task_id: str) -> Log:
        bounds = Bounds(self._max_rows, self._ttl_ms)
        return Log(self._base.scripts, self._base.keys.a2a_updates(task_id), bounds, announce=True)


def _told(row: Row) -> TaskChange:
    (kind,) = unpack(row.data, 1)
    _, *values = unpack(row.data, _SIZES.get(kind, 1))
    return TaskChange(kind, values, row.cursor)


def join_artifacts(added: Sequence[Sequence[Any]]) -> list[Document]:
    """Put artifacts together from what was added: each an artifact, and whether it continues one.

    A continuation adds its parts to the first artifact of its id; without one it begins it.
    """
    artifacts: list[Document] = []
    first: dict[str, Document] = {}
    for artifact, append in added:
        known = first.get(artifact["artifact_id"])
        if append and known is not None:
            cast("list[Any]", known["parts"]).extend(artifact["parts"])
        else:
            artifacts.append(artifact)
            first.setdefault(artifact["artifact_id"], artifact)
    return artifacts


def _status_fields(
    state: str, status: Document, *, final: bool, metadata: Document
) -> dict[str, bytes]:
    return {
        "state": raw(state),
        "status": codec.encode(status),
        "final": b"1" if final else b"0",
        "metadata": codec.encode(metadata),
    }


def _matches(wanted: Filter, context: bytes | None, state: bytes | None) -> bool:
    if state is None or (wanted.state is not None and state != raw(wanted.state)):
        return False
    return not wanted.context_id or context == raw(wanted.context_id)
