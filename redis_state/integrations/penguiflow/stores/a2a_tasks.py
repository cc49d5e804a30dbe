"""PenguiFlow's A2A tasks in the store of A2A tasks: state, messages, artifacts and updates.

A message or an artifact is an entry of its own, so that writers never overwrite one another. What
is added to an artifact is kept as it came; `join_artifacts` puts the parts together for a reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

from redis_state.errors import InvalidField, VersionConflict
from redis_state.primitives.signal import Row
from redis_state.scripts import raw
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object, pack, unpack
from redis_state.stores.a2a.page_tokens import PageTokens
from redis_state.stores.a2a.retry import repeated
from redis_state.stores.a2a.task_model import (
    ABSENT,
    UNLESS_ENDED,
    A2ALimits,
    Draft,
    Listing,
    ListRequest,
    Ref,
    VersionedTask,
)
from redis_state.stores.a2a.tasks import A2ATasks, new_write
from redis_state.stores.base import Base, ms
from redis_state.transport.keys import PENGUIFLOW_SCOPE

T = TypeVar("T")

Document = dict[str, Any]

# What one script can be given.
_MOST_ITEMS = 5_000
_MOST_LISTED = 1_000_000
_PATIENCE_S = 3600.0
# Before each id of a push configuration: it may be empty, and an empty name stands for all.
_CONFIG = "="
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
class TaskPage:
    """A page of tasks: their ids, the token of the next page (empty: none), how many match."""

    ids: Sequence[str]
    next_token: str
    total: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tasks to list. None and an empty context are no condition."""

    context_id: str | None = None
    state: str | None = None
    updated_after: datetime | None = None


class PenguiflowTasks:
    """Create, change, list and follow tasks. False and None mean that there is no such task.

    What the run of a task calls is repeated under its id for ``reconnect_timeout_s`` while the
    server does not reply: creating, changing, and push configurations.
    """

    def __init__(self, base: Base, *, reconnect_timeout_s: float = 0.0) -> None:
        self._base = base
        self._reconnect_timeout_s = reconnect_timeout_s
        ttl_ms, most = ms(base.settings.a2a_task_ttl), base.settings.max_updates_per_a2a_task
        # Upstream lets a final status be followed by others, so no task is ever in phase ENDED.
        self._tasks = A2ATasks(base, A2ALimits(ttl_ms, ttl_ms, most))
        self._tokens = PageTokens(base)

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
        fields = _status_fields(status, final=False, metadata={})
        draft = Draft(
            state=state,
            listing=Listing.now(context_id, state),
            event=None,
            fields={"context": raw(context_id), "body": codec.encode(document), **fields},
            history=[codec.encode(message) for message in history],
            artifacts=[pack([artifact, False]) for artifact in artifacts],
        )
        write = partial(self._tasks.write, _ref(task_id), draft, ABSENT, write=new_write("c"))
        try:
            await self._repeat(write)
        except VersionConflict:
            return False
        return True

    async def add_message(self, task_id: str, message: Document) -> bool:
        """Append a message to the history. Its subscribers do not receive it, as upstream."""
        item = codec.encode(message)
        draft = Draft(listing=Listing.now(), event=pack(["history"]), history=[item])
        return await self._update(task_id, draft)

    async def set_status(
        self, task_id: str, *, state: str, status: Document, final: bool, metadata: Document
    ) -> bool:
        """Set the status and publish it. Atomic; the last one wins."""
        draft = Draft(
            state=state,
            listing=Listing.now(state=state),
            event=pack(["status", status, final, metadata]),
            fields=_status_fields(status, final=final, metadata=metadata),
        )
        return await self._update(task_id, draft)

    async def add_artifact(
        self,
        task_id: str,
        artifact: Document,
        *,
        append: bool,
        last_chunk: bool,
        metadata: Document,
    ) -> bool:
        """Add an artifact, or its parts to the one of its id, and publish it. Atomic."""
        event = pack(["artifact", artifact, append, last_chunk, metadata])
        item = pack([artifact, append])
        draft = Draft(listing=Listing.now(), event=event, artifacts=[item])
        return await self._update(task_id, draft)

    async def load(
        self, task_id: str, *, messages: int | None = None, artifacts: bool = True
    ) -> FoundTask | None:
        """Read a task at one moment, with the newest ``messages`` of its history, all for None."""
        newest = -1 if messages is None else max(messages, 0)
        found = await self._tasks.read(_ref(task_id), messages=newest, artifacts=artifacts)
        if found is None:
            return None
        read = partial(_found, found)
        return self._base.attempt("a2a", f"a2a task {task_id}", found.body, read)

    async def list(self, wanted: Filter, *, size: int, token: str | None) -> TaskPage:
        """Return a page of tasks, the last updated first.

        Errors: InvalidField for a token of another list.
        """
        after = wanted.updated_after
        # Times are whole microseconds, and the moment itself is left out.
        since_ns = None if after is None else (_microseconds(after) + 1) * 1000
        context = wanted.context_id or None
        about = ("penguiflow", context, wanted.state, since_ns)
        place = await self._tokens.open(token or "", *about)
        page = await self._tasks.list(
            PENGUIFLOW_SCOPE,
            ListRequest(
                context, wanted.state, since_ns, place, min(max(size, 0), _MOST_LISTED), whole=False
            ),
        )
        return TaskPage(page.ids, await self._tokens.seal(page.after, *about), page.total)

    async def follow(self, task_id: str, *, after: str) -> AsyncGenerator[TaskChange, None]:
        """Yield every update after a cursor once, in order, from any process.

        Errors: CursorGap, and then `load` returns the present state; BackendUnavailable.
        """
        rows = self._tasks.log(_ref(task_id)).follow(after=after, reconnect_timeout_s=_PATIENCE_S)
        async with aclosing(rows):
            async for row in rows:
                change = self._base.read_row("a2a", "a2a update", row, _change)
                if change is not None:
                    yield change

    async def save_push(self, task_id: str, config_id: str, config: Document) -> bool:
        """Save a push configuration; one of the same id is replaced."""
        put = self._tasks.configs.put_on_task
        data = codec.encode(config)
        name = _CONFIG + config_id
        return await self._repeat(partial(put, PENGUIFLOW_SCOPE, task_id, name, data))

    async def delete_push(self, task_id: str, config_id: str) -> bool:
        """Delete a push configuration, if there is one."""
        name = _CONFIG + config_id
        drop = partial(self._tasks.configs.drop, PENGUIFLOW_SCOPE, task_id, name)
        _, there = await self._repeat(lambda: self._with_task(task_id, drop()))
        return there

    async def push_configs(self, task_id: str) -> Mapping[str, Document] | None:
        """Return a task's push configurations by id."""
        read = partial(self._tasks.configs.list, PENGUIFLOW_SCOPE, task_id)
        found, there = await self._repeat(lambda: self._with_task(task_id, read()))
        if not there:
            return None
        return {name.removeprefix(_CONFIG): as_object(config) for name, config in found.items()}

    async def push_page(
        self, task_id: str, *, size: int, token: str | None
    ) -> tuple[Sequence[Document], str]:
        """Return a page of push configurations by name and id, and the next page's token.

        Errors: KeyError without such a task; InvalidField for a token of another list.
        """
        place = await self._tokens.open(token or "", "push", task_id)
        after: Any = codec.decode(place.encode("utf-8", "surrogatepass")) if place else []
        configs = await self.push_configs(task_id)
        if configs is None:
            raise KeyError(task_id)
        placed = sorted(([found["name"] or "", name], found) for name, found in configs.items())
        left = [entry for entry in placed if entry[0] > after]
        page = left[:size]
        more = codec.encode(page[-1][0]).decode() if len(left) > len(page) else ""
        return [found for _, found in page], await self._tokens.seal(more, "push", task_id)

    async def _with_task(self, task_id: str, call: Awaitable[T]) -> tuple[T, bool]:
        """Wait for a call, and return whether there is such a task."""
        commands = self._base.scripts.transport.commands
        there = commands.exists(self._base.keys.a2a_task(PENGUIFLOW_SCOPE, task_id))
        return await asyncio.gather(call, _is_one(there))

    async def _update(self, task_id: str, draft: Draft) -> bool:
        write_id = new_write("u")
        write = partial(self._tasks.write, _ref(task_id), draft, UNLESS_ENDED, write=write_id)
        return await self._repeat(write) is not None

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        return await repeated(call, self._base.scripts.transport, self._reconnect_timeout_s)


def _ref(task_id: str) -> Ref:
    return Ref(PENGUIFLOW_SCOPE, task_id)


async def _is_one(reply: Awaitable[int]) -> bool:
    return await reply == 1


def _microseconds(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _found(found: VersionedTask) -> FoundTask:
    return FoundTask(
        document=as_object(found.body),
        status=as_object(found.fields["status"]),
        final=found.fields["final"] == b"1",
        metadata=as_object(found.fields["metadata"]),
        history=[as_object(message) for message in found.history],
        artifacts=join_artifacts([unpack(entry, 2) for entry in found.artifacts]),
        cursor=found.version.cursor,
    )


def _change(row: Row) -> TaskChange:
    data = row.data[1:]
    (kind,) = unpack(data, 1)
    _, *values = unpack(data, _SIZES.get(kind, 1))
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


def _status_fields(status: Document, *, final: bool, metadata: Document) -> dict[str, bytes]:
    return {
        "status": codec.encode(status),
        "final": b"1" if final else b"0",
        "metadata": codec.encode(metadata),
    }
