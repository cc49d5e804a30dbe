"""What the client reads of tasks, and does with those that are there already."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar, Unpack

from redis_state import limits
from redis_state.errors import InvalidField, InvalidTransition, OutcomeUnknown, TaskUnknown
from redis_state.http_client.documents import (
    TaskTree,
    Timeline,
    read_compensation,
    read_counts,
    read_full_step,
    read_report,
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
from redis_state.http_client.problems import gap_of
from redis_state.http_client.requests import LONGEST_KEY, Ask, GatewayCaller, key_of, not_readable
from redis_state.models import (
    StateUpdate,
    SteeringEvent,
    SteeringEventType,
    TaskState,
    TaskStatus,
)
from redis_state.models.attributes import Attributes
from redis_state.models.steering import steering_event
from redis_state.models.tasks import new_id
from redis_state.primitives.listed import behind_a_write
from redis_state.stores.sessions.session_log import EntryPage
from redis_state.worker import (
    Archived,
    BulkAction,
    BulkReport,
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
from redis_state.worker.client.operations import check_id
from redis_state.worker.tasks.views.task_filter import TaskFilter

T = TypeVar("T")

MOST_IN_BULK = 500
# A gateway bounds how much one caller asks of it.
_AT_ONCE = 16
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class HttpTasks:
    """The part of the client that asks about tasks, and changes them."""

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
        query = [("limit", str(limits.count("limit", limit))), *_filters(filters)]
        query += [] if newest_first else [("oldest_first", "true")]
        query += [] if after is None else [("after", after)]
        archived = Archived.read(archived)
        query += [] if archived is Archived.NO else [("archived", archived.value)]
        found = await self._caller.call(Ask("GET", ("tasks",), query))
        tasks = [read_summary(each) for each in found["tasks"]]
        return FoundPage(tasks, found["cursor"], incomplete=bool(found.get("incomplete")))

    async def sessions(self, *, limit: int = 100, after: str | None = None) -> SessionTaskPage:
        """List the sessions that have tasks. See `TaskClient.sessions`.

        A caller of some sessions gets those.
        """
        query = [("limit", str(limits.count("limit", limit)))]
        query += [] if after is None else [("after", after)]
        found = await self._caller.call(Ask("GET", ("sessions",), query))
        listed = await _all_of(partial(self._with_newest, each) for each in found["sessions"])
        return SessionTaskPage([read_session(each) for each in listed], found["cursor"])

    async def count(self, *, session_id: str) -> dict[TaskStatus, int]:
        """Count the tasks of a session by status. Those that are only archived do not count."""
        path = ("sessions", _id("session_id", session_id))
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
        ask = Ask("GET", ("sessions", _id("session_id", session_id), "tree"), missing=None)
        found = await self._caller.call(ask)
        return [] if found is None else [read_tree(each) for each in found["trees"]]

    async def timeline(
        self, session_id: str, task_id: str, *, limit: int = 100, after: str | None = None
    ) -> Timeline | None:
        """Return all that is known of a task's runs, with a page of its updates; or None."""
        query = [("limit", str(limits.count("limit", limit)))]
        query += [] if after is None else [("after", after)]
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
        query = [("limit", str(limits.count("limit", limit)))]
        query += [] if after is None else [("after", after)]
        query += [] if task_id is None else [("task", task_id)]
        path = ("sessions", _id("session_id", session_id), "updates")
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
        query = [("limit", str(limits.count("limit", limit)))]
        query += [] if after is None else [("after", after)]
        found = await self._caller.call(Ask("GET", ("tasks", "dead"), query))
        return DeadPage([read_state(each) for each in found["tasks"]], found["cursor"])

    async def workers(self) -> list[WorkerInfo]:
        """List the live worker processes."""
        found = await self._caller.call(Ask("GET", ("workers",)))
        return [read_worker(each) for each in found["workers"]]

    async def steer(
        self,
        session_id: str,
        task_id: str,
        event_type: SteeringEventType,
        payload: dict[str, Any] | None = None,
        *,
        event_id: str | None = None,
    ) -> SteeringEvent:
        """Send a steering event to a task that runs or waits. See `TaskClient.steer`.

        The same ``event_id`` of the same caller is the same event. The gateway gives it another id,
        which the returned event has, and the caller as its source. A pause is decided with
        `resolve`: APPROVE and REJECT are refused.
        """
        key = key_of("event_id", event_id or None)
        event = steering_event(
            session_id=session_id,
            task_id=task_id,
            event_type=event_type,
            payload=payload or {},
            source="",
            event_id=key,
        )
        body = {"type": event.event_type.value, "payload": event.payload}
        sent = await self._change(session_id, task_id, "steer", body, key)
        return event.model_copy(update={"event_id": sent["event_id"], "source": sent["source"]})

    async def cancel(
        self,
        session_id: str,
        task_id: str,
        *,
        reason: str | None = None,
        hard: bool = False,
        idempotency_key: str | None = None,
    ) -> bool:
        """Cancel a task. See `TaskClient.cancel`."""
        body: dict[str, Any] = {"hard": hard} | ({"reason": reason} if reason else {})
        try:
            key = limits.own_id("idempotency_key", idempotency_key) or new_id()
            await self._change(session_id, task_id, "cancel", body, key)
        except (TaskUnknown, InvalidTransition):
            return False
        return True

    async def retry(
        self, session_id: str, task_id: str, *, idempotency_key: str | None = None
    ) -> TaskState:
        """Reopen a task that is FAILED or CANCELLED. See `TaskClient.retry`.

        It needs ``read`` beside ``steer``. Without it TaskUnknown is raised, and nothing is done.
        """
        key = key_of("idempotency_key", idempotency_key)
        if len(key) > LONGEST_KEY:
            raise InvalidField("idempotency_key", f"text of 1 to {LONGEST_KEY} signs is needed")
        # Read first: behind the change, a task that cannot be read would deny it.
        if await self.get(session_id, task_id) is None:
            raise TaskUnknown(task_id)
        await self._change(session_id, task_id, "retry", {}, key)
        with behind_a_write(self._caller.address):
            state = await self.get(session_id, task_id)
        if state is None:
            raise OutcomeUnknown(self._caller.address, "reopened, then: it cannot be read any more")
        return state

    async def rerun(
        self,
        session_id: str,
        task_id: str,
        *,
        new_task_id: str | None = None,
        new_session_id: str | None = None,
        attributes: Attributes | None = None,
        queue: str | None = None,
    ) -> str:
        """Submit a new task with the input and the handler of another. See `TaskClient.rerun`."""
        body = _given(
            new_task_id=limits.own_id("new_task_id", new_task_id) or new_id(),
            new_session_id=new_session_id,
            attributes=None if attributes is None else dict(attributes),
            queue=queue,
        )
        made = await self._change(session_id, task_id, "rerun", body)
        return str(made["task_id"])

    async def fork(
        self,
        session_id: str,
        task_id: str,
        *,
        before: str | None = None,
        new_task_id: str | None = None,
        attributes: Attributes | None = None,
        queue: str | None = None,
    ) -> str:
        """Submit a new task that begins with another one's journal. See `TaskClient.fork`."""
        body = _given(
            before=before,
            new_task_id=limits.own_id("new_task_id", new_task_id) or new_id(),
            attributes=None if attributes is None else dict(attributes),
            queue=queue,
        )
        made = await self._change(session_id, task_id, "fork", body)
        return str(made["task_id"])

    async def bulk(
        self,
        action: BulkAction | str,
        *,
        dry_run: bool = False,
        limit: int = MOST_IN_BULK,
        idempotency_key: str | None = None,
        before: str | None = None,
        reason: str | None = None,
        **filters: Unpack[TaskFilters],
    ) -> BulkReport:
        """Retry, rerun, fork or cancel all tasks that match, the oldest first: 500 at most.

        See `TaskClient.bulk`. Without an ``idempotency_key`` it is sent once. With one it is
        repeated if the connection breaks; then the report may lack what the first attempt has
        changed.
        """
        try:
            action = BulkAction(action)
        except ValueError:
            raise InvalidField("action", f"one of {', '.join(BulkAction)} is needed") from None
        wanted = TaskFilter.read(**filters)
        chosen: dict[str, Any] = _given(
            handler=wanted.handler,
            session_id=wanted.session_id,
            attributes=dict(wanted.attributes) or None,
            created_after=_text(wanted.created_after),
            created_before=_text(wanted.created_before),
            ended_after=_text(wanted.ended_after),
            ended_before=_text(wanted.ended_before),
        )
        if filters.get("status") is not None:
            chosen["status"] = [status.value for status in wanted.statuses]
        options = {"dry_run": dry_run, "limit": limits.count("limit", limit)}
        body = {"action": action.value, "filter": chosen, **options}
        body |= _given(before=before, reason=reason)
        repeatable = dry_run or idempotency_key is not None
        ask = Ask("POST", ("bulk",), body=body, key=idempotency_key, repeatable=repeatable)
        return read_report(await self._caller.call(ask))

    async def _read(self, session_id: str, task_id: str) -> Any:
        return await self._caller.call(_task(session_id, task_id))

    async def _with_newest(self, session: dict[str, Any]) -> dict[str, Any]:
        """Add when the newest task was made, if the list has it not."""
        if session["newest_at"] is not None:
            return session
        newest = (await self.find(session_id=session["session_id"], limit=1)).tasks
        moment = newest[0].created_at if newest else _LONG_AGO
        return session | {"newest_at": moment.isoformat()}

    async def _change(
        self,
        session_id: str,
        task_id: str,
        name: str,
        body: Mapping[str, Any],
        key: str | None = None,
    ) -> Any:
        """Change a task, under a key or an id of what is made: it may be repeated."""
        return await self._caller.call(
            Ask(
                "POST",
                _path(session_id, task_id, name),
                body=body,
                key=key,
                missing=lambda: TaskUnknown(task_id),
            )
        )


async def _all_of(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make calls, some at a time; return what they return, in their order."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with gate:
            return await call()

    return await asyncio.gather(*map(one, calls))


def _task(session_id: str, task_id: str, *more: str, query: Sequence[tuple[str, str]] = ()) -> Ask:
    return Ask("GET", _path(session_id, task_id, *more), query, missing=None)


def _path(session_id: str, task_id: str, *more: str) -> tuple[str, ...]:
    return ("sessions", _id("session_id", session_id), "tasks", _id("task_id", task_id), *more)


def _id(field: str, value: str) -> str:
    check_id(field, value)
    return value


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


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
        value = _text(getattr(wanted, name))
        query += [] if value is None else [(name, value)]
    # As JSON a text stays one, also "5".
    query += [
        ("attribute", f"{name}={json.dumps(value)}") for name, value in wanted.attributes.items()
    ]
    return query


def _text(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    # One without a time zone is taken as UTC, as by the direct client.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()
