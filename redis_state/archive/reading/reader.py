"""Read through: what Redis still has, else what the archive has, with the same cursors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar

from redis_state import limits
from redis_state.agents.state.session import AgentSession
from redis_state.agents.storage.session_store import SessionStore
from redis_state.archive.encoding import fields_of
from redis_state.archive.model import (
    ArchivedRecord,
    ArchivedSession,
    ArchivedTask,
    RecordKind,
    RecordPlace,
    TaskEnd,
)
from redis_state.archive.opening import open_archive
from redis_state.archive.protocol import Archive, complete, patience
from redis_state.archive.queries import ArchiveListing, ArchiveQuery
from redis_state.archive.reading.artifacts import KeptArtifact, kept_artifacts
from redis_state.archive.reading.breaker import CallBreaker
from redis_state.archive.reading.history import EventCursor, EventHistory, read_history, row_of
from redis_state.archive.reading.updates import UpdateReader
from redis_state.models import ArtifactRef, StateUpdate, TaskState, TaskStatus, Trajectory
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.session_log import Entry, EntryPage
from redis_state.stores.sessions.task_fields import microseconds

T = TypeVar("T")

_PAGE = 100
# Of the time of a caller who must not be held up: with less left no further page is read.
_SPARE_S = 2.5


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """An archived record, and its value as the store's own model; None if it cannot be read."""

    record: ArchivedRecord
    value: Any = field(repr=False)

    @property
    def place(self) -> RecordPlace:
        """The place behind which the next page begins."""
        return self.record.place


def _read_trajectory(store: RedisStateStore, record: ArchivedRecord) -> Any:
    return store.trajectories.read(record.data)


def _read_agent_session(store: RedisStateStore, record: ArchivedRecord) -> Any:
    return SessionStore(store).read(record.owner, fields_of(record.data.decode()))


def _read_event(store: RedisStateStore, record: ArchivedRecord) -> Any:
    return store.events.read(row_of(record))


def _read_artifact(store: RedisStateStore, record: ArchivedRecord) -> Any:
    return store.artifact_store.read(record.data)


_READERS: Mapping[RecordKind, Callable[[RedisStateStore, ArchivedRecord], Any]] = {
    RecordKind.TRAJECTORY: _read_trajectory,
    RecordKind.AGENT_SESSION: _read_agent_session,
    RecordKind.EVENT: _read_event,
    RecordKind.ARTIFACT: _read_artifact,
}


class ArchiveReader:
    """Read sessions and tasks of a store and of its archive, by default that of its settings.

    Errors of every call: ArchiveUnavailable, and those of the store. Nothing is written. Payloads
    are opened by the store's codec. An object of the store of claims is read from there.
    """

    def __init__(self, store: RedisStateStore, archive: Archive | None = None) -> None:
        self._store = store
        self._own = archive is None
        self.archive: Archive = complete(
            open_archive(store.settings) if archive is None else archive
        )
        self._updates = UpdateReader(store, self.archive)
        self._breaker = CallBreaker()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect from an archive of its own."""
        if self._own:
            await self.archive.aclose()

    async def session(self, session_id: str) -> ArchivedSession | None:
        """Return what the archive has of a session, or None."""
        return await self.archive.session(session_id)

    async def task(self, session_id: str, task_id: str) -> TaskState | None:
        """Return a task from Redis, else its last archived end; None if neither has it."""
        live = await self._store.tasks.load(session_id, task_id)
        if live is not None:
            return live
        newest = await self.archived(session_id, task_id)
        return None if newest is None else await self.state_of(newest)

    async def archived(self, session_id: str, task_id: str) -> ArchivedTask | None:
        """Return the last task of an id as the archive has it, with its journal; or None."""
        query = ArchiveQuery(session_id=session_id, task_id=task_id, limit=_PAGE)
        newest: ArchivedTask | None = None
        while found := await self.archive.tasks(query):
            for task in found:
                if newest is None or task.born_us > newest.born_us:
                    newest = task
            query = replace(query, after=found[-1].end)
        return newest

    async def soon(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call of the archive that must not hold up who asks.

        Four are made at a time. Errors: ArchiveUnavailable after 5 s, or after 10 s without a turn.
        It is raised at once after two failures of which the second call began behind the first: for
        5 s, and then while another caller asks. One that the archive has answered in part is none.
        """
        return await self._breaker.call(call)

    async def tasks(
        self, session_id: str, *, limit: int = 1000, fetch: bool = True
    ) -> list[TaskState]:
        """Return a session's tasks in the order of their creation, of Redis and the archive.

        A task that Redis has is as Redis has it. ``limit`` bounds those from the archive: the last
        that were created. Without ``fetch`` large results of those stay in the store of claims, as
        `Sealed`. Errors: PayloadLost with it.
        """
        found, _ = await self.tasks_or_more(session_id, limit=limit, fetch=fetch)
        return found

    async def tasks_or_more(
        self, session_id: str, *, limit: int = 1000, fetch: bool = True
    ) -> tuple[list[TaskState], bool]:
        """Return what `tasks` returns, and whether the archive may have more.

        Within `soon` no further page is read once half of its time has passed.
        """
        limits.count("limit", limit)
        live = {state.task_id: state for state in await self._store.list_tasks(session_id)}
        newest, more = await self._tasks_of(session_id, limit)
        found = [
            (task.created_at, await self.state_of(task) if fetch else self._read(task))
            for task in newest
            if task.task_id not in live
        ]
        found += [(state.created_at, state) for state in live.values()]
        found.sort(key=lambda each: microseconds(each[0]))
        return [state for _, state in found], more

    async def _tasks_of(self, session_id: str, limit: int) -> tuple[list[ArchivedTask], bool]:
        """Return the archived tasks of a session, the newest first, of each id the last.

        And whether there may be more.
        """
        found: list[ArchivedTask] = []
        after: bytes | None = None
        loop, ends = asyncio.get_running_loop(), patience.get() - _SPARE_S
        while len(found) < limit:
            most = min(limit - len(found), _PAGE)
            page = await self.archive.find(
                ArchiveListing(session_id=session_id, limit=most, after=after)
            )
            found += page.tasks
            after = page.end
            if after is None:
                return found, False
            if loop.time() > ends:
                break
        return found, True

    async def find(
        self,
        *,
        session_id: str | None = None,
        handler: str | None = None,
        trace_id: str | None = None,
        status: Sequence[TaskStatus] = (),
        ended_after: datetime | None = None,
        ended_before: datetime | None = None,
        after: TaskEnd | None = None,
        limit: int = 100,
    ) -> list[ArchivedTask]:
        """Find archived tasks, the last that ended first. `state_of` makes a task's state.

        A page has 4 MiB of records and journals, or one task. The next one begins ``after`` the
        ``end`` of its last task; an empty one is the end.
        """
        return await self.archive.tasks(
            ArchiveQuery(
                session_id=session_id,
                handler=handler,
                trace_id=trace_id,
                statuses=tuple(status),
                ended_after=ended_after,
                ended_before=ended_before,
                after=after,
                limit=limit,
            )
        )

    async def state_of(self, task: ArchivedTask) -> TaskState:
        """Return an archived task as a store does. Errors: PayloadLost, PayloadUnreadable."""
        return await self._store.tasks.whole(self._read(task))

    def _read(self, task: ArchivedTask) -> TaskState:
        return self._store.tasks.read(task.session_id, task.task_id, task.as_stored)

    async def trajectory(self, trace_id: str, session_id: str) -> Trajectory | None:
        """Return a trajectory from Redis, else as it was archived last; None if neither has it."""
        live = await self._store.trajectories.load(trace_id, session_id)
        if live is not None:
            return live
        found = await self._last(RecordKind.TRAJECTORY, session_id, trace_id)
        return None if found is None else self._value(found)

    async def agent_session(
        self, session_id: str, sessions: SessionStore | None = None
    ) -> AgentSession | None:
        """Return an agent's session from Redis, else as it was archived last; None if neither has
        it.

        ``sessions`` opens what it has sealed; without it a sealed key stays sealed. To continue
        an archived one, create one that is `forked` from it. Errors: those of `SessionStore.load`.
        """
        sessions = sessions or SessionStore(self._store)
        live = await sessions.load(session_id)
        if live is not None:
            return live
        found = await self._last(RecordKind.AGENT_SESSION, session_id, "")
        if found is None:
            return None
        return sessions.read(session_id, fields_of(found.data.decode()))

    async def artifact(self, artifact_id: str, session_id: str | None) -> ArtifactRef | None:
        """Return an artifact's reference from Redis, else as it was archived last; or None.

        An artifact without a session is of ``default``. The bytes are in Redis alone: its
        ``sha256`` says whether bytes from elsewhere are the same.
        """
        live = await self._store.artifact_store.reference(artifact_id, session_id)
        if live is not None:
            return live
        owner = "default" if session_id is None else session_id
        found = await self._last(RecordKind.ARTIFACT, owner, artifact_id)
        return None if found is None else self._value(found)

    async def artifacts(self, session_id: str) -> list[KeptArtifact]:
        """Return a session's artifacts, of Redis and the archive, each once, the oldest first.

        All are read. `records` reads those of the archive in pages.
        """
        return await kept_artifacts(self._store, self.archive, session_id)

    async def events(
        self, trace_id: str, *, after: EventCursor | None = None, limit: int = _PAGE
    ) -> EventHistory:
        """Return a page of a trace's audit events, of the archive and Redis, each once.

        They come in the order of the trace's log. A page has some 4 MiB, or one event. The next
        one begins ``after`` its ``cursor``; one without events is the end.
        """
        limits.count("limit", limit)
        return await read_history(self._store, self.archive, trace_id, after=after, limit=limit)

    async def records(
        self,
        kind: RecordKind,
        owner: str,
        *,
        key: str | None = None,
        after: RecordPlace | None = None,
        limit: int = _PAGE,
    ) -> list[ReadRecord]:
        """Return archived records of an owner behind a place, the one that was made first first.

        The owner of a trajectory is its session, its key is its trace. An agent's session is its
        own owner, and has no key. The owner of an event is its trace, its key is its fingerprint.
        The owner of an artifact is its session, or ``default``, its key is its id.
        ``key`` wants those of one key: a record that was made again is another one. A page has
        4 MiB, or one record; an empty one is the end.
        """
        found = await self.archive.records(kind, owner, key=key, after=after, limit=limit)
        return [ReadRecord(record, self._value(record)) for record in found]

    async def _last(self, kind: RecordKind, owner: str, key: str) -> ArchivedRecord | None:
        """Return the record of a key that was made last."""
        last: ArchivedRecord | None = None
        while True:
            after = None if last is None else last.place
            found = await self.archive.records(kind, owner, key=key, after=after, limit=_PAGE)
            if not found:
                return last
            last = found[-1]

    def _value(self, record: ArchivedRecord) -> Any:
        read = _READERS.get(record.kind)
        if read is None:
            return None
        place = f"{record.kind.value} {record.key}"
        return self._store.base.attempt(
            record.owner, place, record.data, partial(read, self._store, record)
        )

    async def updates(
        self,
        session_id: str,
        *,
        after: str | None = None,
        limit: int = _PAGE,
        task_id: str | None = None,
    ) -> EntryPage[StateUpdate]:
        """Return up to ``limit`` updates after a cursor, oldest first, from archive or Redis.

        Cursors are the store's own: one from here continues there, and the other way round. A page
        has rows of one of the two, so it may be short before the end. With ``task_id`` it may be
        empty before the end. Errors: CursorGap if neither has what follows the cursor.
        """
        return await self._updates.page(session_id, after=after, limit=limit, task_id=task_id)

    async def all_updates(
        self, session_id: str, *, after: str | None = None, task_id: str | None = None
    ) -> AsyncGenerator[Entry[StateUpdate]]:
        """Yield all updates after a cursor, oldest first, to the end of what Redis has now."""
        at_end = False
        while not at_end:
            page = await self.updates(session_id, after=after, limit=500, task_id=task_id)
            for entry in page.entries:
                yield entry
            after, at_end = page.cursor, page.at_end
