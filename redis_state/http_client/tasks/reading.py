"""What the client reads of tasks and their sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar, Unpack

from redis_state import limits
from redis_state.http_client.documents import (
    TaskTree,
    Timeline,
    read_compensation,
    read_counts,
    read_full_step,
    read_row,
    read_session,
    read_state,
    read_step,
    read_summary,
    read_timeline,
    read_tree,
    read_view,
    read_worker,
)
from redis_state.http_client.requests.caller import Ask, GatewayCaller, not_readable
from redis_state.http_client.requests.problems import gap_of
from redis_state.http_client.tasks.paths import moment_text, page_query, session_path, task_path
from redis_state.models import StateUpdate, TaskState, TaskStatus
from redis_state.stores.sessions.session_log import EntryPage
from redis_state.worker import (
    Archived,
    Compensation,
    DeadPage,
    FoundPage,
    FullSnapshot,
    SessionTaskPage,
    StepSnapshot,
    TaskFilters,
    TaskView,
    WorkerInfo,
)
from redis_state.worker.tasks.views.task_filter import TaskFilter

T = TypeVar("T")

# A gateway bounds how much one caller asks of it.
_AT_ONCE = 16
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class HttpReading:
    """The part of the client that reads tasks."""

    _caller: GatewayCaller

    async def get(self, session_id: str, task_id: str) -> TaskState | None:
        """Return a task that Redis has, or None. Of its context only the parent is known."""
        found = await self._read(session_id, task_id)
        return None if found is None or found.get("archived") else read_state(found)

    async def inspect(self, session_id: str, task_id: str) -> TaskView | None:
        """Return a task with what its workers know of it, also an archived one; or None."""
        found = await self._read(session_id, task_id)
        return None if found is None else read_view(found)

    async def find(
        self,
        *,
        newest_first: bool = True,
        limit: int = 100,
        after: str | None = None,
        archived: Archived | Literal["no", "also", "only"] = Archived.NO,
        **filters: Unpack[TaskFilters],
    ) -> FoundPage:
        """Find tasks that match every filter. See `TaskClient.find`.

        A caller that may not read everything names a session.
        """
        query = [*page_query(limit, after), *_filters(filters)]
        query += [] if newest_first else [("oldest_first", "true")]
        archived = Archived.read(archived)
        query += [] if archived is Archived.NO else [("archived", archived.value)]
        found = await self._caller.call(Ask("GET", ("tasks",), query))
        tasks = [read_summary(each) for each in found["tasks"]]
        return FoundPage(tasks, found["cursor"], incomplete=bool(found.get("incomplete")))

    async def sessions(self, *, limit: int = 100, after: str | None = None) -> SessionTaskPage:
        """List the sessions that have tasks. See `TaskClient.sessions`.

        A caller of some sessions gets those.
        """
        query = page_query(limit, after)
        found = await self._caller.call(Ask("GET", ("sessions",), query))
        listed = await _all_of(partial(self._with_newest, each) for each in found["sessions"])
        return SessionTaskPage([read_session(each) for each in listed], found["cursor"])

    async def count(self, *, session_id: str) -> dict[TaskStatus, int]:
        """Count the tasks of a session by status. Those that are only archived do not count."""
        path = session_path(session_id)
        found = await self._caller.call(Ask("GET", path, missing=None))
        if found is None or found.get("archived"):
            return dict.fromkeys(TaskStatus, 0)
        return read_counts(found["counts"])

    async def children(self, session_id: str, task_id: str) -> Sequence[TaskState]:
        """List the tasks that a task has spawned, the first spawned first."""
        found = await self._caller.call(_task(session_id, task_id, "tree"))
        branches: list[Any] = [] if found is None else found["children"]
        states = await _all_of(partial(self.get, session_id, each["task_id"]) for each in branches)
        return sorted(
            (state for state in states if state is not None), key=lambda state: state.created_at
        )

    async def tree(self, session_id: str) -> Sequence[TaskTree]:
        """Return the tasks of a session as trees, without their results."""
        ask = Ask("GET", session_path(session_id, "tree"), missing=None)
        found = await self._caller.call(ask)
        return [] if found is None else [read_tree(each) for each in found["trees"]]

    async def timeline(
        self, session_id: str, task_id: str, *, limit: int = 100, after: str | None = None
    ) -> Timeline | None:
        """Return all that is known of a task's runs, with a page of its updates; or None."""
        query = page_query(limit, after)
        found = await self._caller.call(_task(session_id, task_id, "timeline", query=query))
        return None if found is None else read_timeline(session_id, found)

    async def read_updates(
        self,
        session_id: str,
        *,
        after: str | None = None,
        limit: int = 100,
        task_id: str | None = None,
    ) -> EntryPage[StateUpdate]:
        """Return updates of a session after a cursor, oldest first, from the archive and Redis.

        See `ArchiveReader.updates`: the gateway reads its archive, if it has one. With ``task_id``
        a page may be empty before the end. The cursors are those of `watch_updates`. Errors:
        CursorGap if neither has what follows the cursor: read on after its ``resume_after``.
        """
        query = page_query(limit, after)
        query += [] if task_id is None else [("task", task_id)]
        path = session_path(session_id, "updates")
        found = await self._caller.call(Ask("GET", path, query, missing=not_readable))
        if found["gap"] is not None:
            raise gap_of(found["gap"], cursor=after or "0")
        entries = [read_row(session_id, row) for row in found["rows"]]
        return EntryPage(entries, found["cursor"], at_end=found["at_end"])

    async def snapshots(self, session_id: str, task_id: str) -> list[StepSnapshot]:
        """List the recorded steps of a task in order, without the results."""
        found = await self._caller.call(_task(session_id, task_id, "snapshots"))
        return [] if found is None else [read_step(each) for each in found["snapshots"]]

    async def snapshot(self, session_id: str, task_id: str, version: int) -> FullSnapshot | None:
        """Return one snapshot with its result, or None."""
        found = await self._caller.call(_task(session_id, task_id, "snapshots", str(version)))
        return None if found is None else read_full_step(found)

    async def last_checkpoint(self, session_id: str, task_id: str) -> FullSnapshot | None:
        """Return the newest snapshot that a `checkpoint_step` made, or None."""
        steps = [each for each in await self.snapshots(session_id, task_id) if each.checkpoint]
        return await self.snapshot(session_id, task_id, steps[-1].version) if steps else None

    async def compensations(self, session_id: str, task_id: str) -> list[Compensation]:
        """List what a task's handler registered to be undone, and what became of it."""
        ask = _task(session_id, task_id, "timeline", query=[("limit", "1")])
        found = await self._caller.call(ask)
        return [] if found is None else [read_compensation(each) for each in found["compensations"]]

    async def dead(self, *, limit: int = 100) -> Sequence[TaskState]:
        """List dead letters, the newest first: 1,000 at most. It needs ``read`` over everything.

        See `TaskClient.dead`.
        """
        if limits.count("limit", limit, least=0) == 0:
            return []
        ask = Ask("GET", ("tasks", "dead"), [("limit", str(limit))])
        found = await self._caller.call(ask)
        return [read_state(each) for each in found["tasks"]]

    async def list_dead(self, *, limit: int = 100, after: str | None = None) -> DeadPage:
        """Return a page of dead letters, the newest first. It needs ``read`` over everything.

        See `TaskClient.list_dead`.
        """
        query = page_query(limit, after)
        found = await self._caller.call(Ask("GET", ("tasks", "dead"), query))
        return DeadPage([read_state(each) for each in found["tasks"]], found["cursor"])

    async def workers(self) -> list[WorkerInfo]:
        """List the live worker processes."""
        found = await self._caller.call(Ask("GET", ("workers",)))
        return [read_worker(each) for each in found["workers"]]

    async def _read(self, session_id: str, task_id: str) -> Any:
        return await self._caller.call(_task(session_id, task_id))

    async def _with_newest(self, session: dict[str, Any]) -> dict[str, Any]:
        """Add when the newest task was made, if the list has it not."""
        if session["newest_at"] is not None:
            return session
        newest = (await self.find(session_id=session["session_id"], limit=1)).tasks
        moment = newest[0].created_at if newest else _LONG_AGO
        return session | {"newest_at": moment.isoformat()}


async def _all_of(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make calls, some at a time; return what they return, in their order."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await call()

    return await asyncio.gather(*map(one, calls))


def _task(session_id: str, task_id: str, *more: str, query: Sequence[tuple[str, str]] = ()) -> Ask:
    return Ask("GET", task_path(session_id, task_id, *more), query, missing=None)


def _filters(filters: TaskFilters) -> list[tuple[str, str]]:
    """Write filters as a query. Errors: InvalidField."""
    wanted = TaskFilter.read(**filters)
    query: list[tuple[str, str]] = []
    if filters.get("status") is not None:
        query += [("status", status.value) for status in wanted.statuses]
    for name in ("handler", "session_id"):
        value = getattr(wanted, name)
        query += [] if value is None else [(name, value)]
    for name in ("created_after", "created_before", "ended_after", "ended_before"):
        value = moment_text(getattr(wanted, name))
        query += [] if value is None else [(name, value)]
    # As JSON a text stays one, also "5".
    query += [
        ("attribute", f"{name}={json.dumps(value)}") for name, value in wanted.attributes.items()
    ]
    return query
