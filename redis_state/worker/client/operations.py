"""Find tasks over all sessions, and operate them: retry, rerun, fork, one or all that match."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, Unpack

from redis_state import limits
from redis_state.errors import InvalidField, InvalidTransition, RetryRefused
from redis_state.models import TaskState, TaskStatus
from redis_state.models.attributes import Attributes, check_attributes
from redis_state.store import RedisStateStore
from redis_state.worker.queue.jobs.job import Job
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.operate.bulk import (
    APPLIES,
    BulkAction,
    BulkReport,
    Progress,
    do_to_all,
    is_made_under,
    named_under,
)
from redis_state.worker.tasks.operate.copies import Copies, Source, check_forked
from redis_state.worker.tasks.operate.reopen import Reopening
from redis_state.worker.tasks.views.finding import FoundPage, find_tasks
from redis_state.worker.tasks.views.finding_archived import Archived, find_in_both
from redis_state.worker.tasks.views.session_list import SessionTaskPage, count_tasks, list_sessions
from redis_state.worker.tasks.views.stream import view_task
from redis_state.worker.tasks.views.summary import TaskSummary
from redis_state.worker.tasks.views.task_filter import TaskFilter, TaskFilters


class TaskOperations:
    """What a client does with tasks that are there already, of all sessions."""

    def __init__(self, store: RedisStateStore, *, queue: str | None = None) -> None:
        self.store: RedisStateStore = store
        self._queue = Queue(store, name=queue)
        self._reopening = Reopening(store, self._queue)
        self._copies = Copies(store)

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
        raise NotImplementedError

    async def find(
        self,
        *,
        newest_first: bool = True,
        limit: int = 100,
        after: str | None = None,
        archived: Archived | Literal["no", "also", "only"] = Archived.NO,
        **filters: Unpack[TaskFilters],
    ) -> FoundPage:
        """Find tasks of all sessions that match every filter, in the order of their creation.

        The filters are ``status`` (one or several), ``handler``, ``session_id``, ``attributes``,
        ``created_after``, ``created_before``, ``ended_after`` and ``ended_before``. With one of the
        last two only terminal tasks are found, in the order of their ends.

        A page costs the page, however many tasks there are. ``after`` is the cursor of the page
        before, with the same filters: a task that did not change is neither skipped nor repeated.
        Each task is returned as its record stands. A page of several filters may be short, or
        empty, and still have a cursor.

        A change is found within moments; after a crash at the wrong moment, once a sweeper has
        inspected the task. Tasks are found that workers run, also terminal ones for as long as they
        are kept. ``created_after`` and ``ended_after`` are included, ``created_before`` and
        ``ended_before`` are not. Creations have the clock of the client that submitted, ends that
        of the process that wrote the end: they are `TaskSummary.updated_at`.

        ``archived`` says whether tasks are found that are only in the archive of `archive_url` by
        now: ``no``, ``also`` or ``only``. The order and the cursor are the same: a task that leaves
        Redis between two pages comes once. If the archive is away, ``also`` finds what Redis has,
        and the page is ``incomplete``.

        Errors: InvalidField, also for a cursor that is none, or of other filters, and for times of
        the end with unfinished statuses alone. With an archive
        ConfigError without `archive_url`; with ``only`` ArchiveUnavailable.
        """
        wanted, archived = TaskFilter.read(**filters), Archived.read(archived)
        if archived is not Archived.NO:
            return await find_in_both(
                self.store,
                wanted,
                archived=archived,
                newest_first=newest_first,
                limit=limit,
                after=after,
            )
        return await find_tasks(
            self.store, wanted, newest_first=newest_first, limit=limit, after=after
        )

    async def sessions(self, *, limit: int = 100, after: str | None = None) -> SessionTaskPage:
        """List the sessions that have tasks, by their ids, with the number of tasks by status.

        Errors: InvalidField, also for a cursor that is none.
        """
        return await list_sessions(self.store, limit=limit, after=after)

    async def count(
        self,
        *,
        handler: str | None = None,
        session_id: str | None = None,
        attributes: Attributes | None = None,
        ended_after: datetime | None = None,
        ended_before: datetime | None = None,
    ) -> dict[TaskStatus, int]:
        """Count tasks by status: all, or those of one handler, one session or one attribute.

        Or those that ended between two times, the first included. It costs the same however many
        there are. Errors: InvalidField for several filters.
        """
        return await count_tasks(
            self.store,
            handler=handler,
            session_id=session_id,
            attributes=attributes,
            ended_after=ended_after,
            ended_before=ended_before,
        )

    async def retry(
        self, session_id: str, task_id: str, *, idempotency_key: str | None = None
    ) -> TaskState:
        """Reopen a task that is FAILED or CANCELLED, also a dead letter, and queue it.

        It keeps its journal: recorded steps are not repeated. Its crashes and what it has used of
        its budgets are set back. A child's end that failed the task is left out of the journal, and
        the child is reopened too; so are the children that were cancelled with the task, and not
        for themselves. A pause that timed out and failed the task is opened again. Likewise a
        message that did not come in time is waited for again. An earlier cancel or PAUSE does not
        hold any more. Watchers see the task PENDING, with ``retry`` and the number.

        One caller wins, the others get InvalidTransition. A call with the ``idempotency_key`` of
        the task's last retry does nothing and gets the task. If the caller died before the task was
        reopened, the repeated call reopens it, with the children that were not reopened yet.

        Errors: TaskUnknown; InvalidTransition in any other status; RetryRefused for a task that a
        host saved, or that has a status of its protocol's own; RetryRefused also if its parent was
        cancelled, or if what it or a child that it brings did was undone; PayloadUnreadable if it
        depends on an error that this process cannot read; OutcomeUnknown also if it is
        reopened and the queue is unreachable. Then a sweeper queues it.
        """
        return (await self._reopening.retry(session_id, task_id, key=idempotency_key)).state

    async def rerun(
        self,
        session_id: str,
        task_id: str,
        *,
        new_task_id: str | None = None,
        new_session_id: str | None = None,
        attributes: Attributes | None = None,
        queue: str | None = None,
        sent: bytes | None = None,
    ) -> str:
        """Submit a new task with the input and the handler of another, whatever its status.

        Return its id. It names the other as `TaskView.rerun_of`, and has its attributes, unless
        others are given. The same ``new_task_id`` is the same task, as in `submit`. ``sent`` is as
        in `submit_or_find`. One that Redis does not have is read from the archive, if there is one.

        In another session it has a large input as an object of its own. Errors: TaskUnknown;
        RetryRefused for a task without a handler; those of `submit`; PayloadLost for an input that
        is gone; of an archived task ArchiveUnavailable.
        """
        _check_copy(new_task_id, queue)
        source = await self._copies.source(session_id, task_id)
        return await self._copy(
            source,
            new_task_id,
            session_id if new_session_id is None else new_session_id,
            queue,
            lambda state, queue: self._copies.rerun(
                source, state, attributes=_given(source, attributes), queue=queue, sent=sent
            ),
        )

    async def fork(
        self,
        session_id: str,
        task_id: str,
        *,
        before: str | None = None,
        new_task_id: str | None = None,
        attributes: Attributes | None = None,
        queue: str | None = None,
        sent: bytes | None = None,
    ) -> str:
        """Submit a new task that begins with another one's journal, up to an entry of it.

        ``before`` names the entry, which the fork does again: a step, a pause or a child, by its
        name if there is one of it, else with its number, as `snapshots` has it. Without it all that
        is recorded is kept. Return the new task's id. It is in the same session, and names the
        other as `TaskView.forked_from`. One that Redis does not have is read from the archive.

        Errors: TaskUnknown; InvalidField for a name of nothing that is recorded, or of several;
        RetryRefused for a task without a handler; those of `submit`; those of `rerun` for an
        archived task.
        """
        _check_copy(new_task_id, queue)
        source = await self._copies.source(session_id, task_id)
        return await self._copy(
            source,
            new_task_id,
            session_id,
            queue,
            lambda state, queue: self._copies.fork(
                source,
                state,
                before=before,
                attributes=_given(source, attributes),
                queue=queue,
                sent=sent,
            ),
        )

    async def bulk(
        self,
        action: BulkAction | str,
        *,
        dry_run: bool = False,
        limit: int = 10_000,
        concurrency: int = 16,
        idempotency_key: str | None = None,
        before: str | None = None,
        reason: str | None = None,
        progress: Progress | None = None,
        **filters: Unpack[TaskFilters],
    ) -> BulkReport:
        """Retry, rerun, fork or cancel all tasks that match filters of `find`, the oldest first.

        By the times of their ends the first that ended comes first.
        Without a status all apply that the action can change; others are never touched. With
        ``dry_run`` nothing is changed. ``limit`` bounds how many. ``progress`` is called with each
        outcome. If the call is cancelled, what is under way then is FAILED: it may have happened.
        With an ``idempotency_key`` a repeated call retries no task twice, and reruns and
        forks none twice. It leaves out the copies that the calls before it made, and refuses a task
        that it has retried and that failed again. ``before`` is that of forks, ``reason`` that of
        cancels.

        Errors: InvalidField; KeyReused if the key forked one of them before with another
        ``before``; BackendError if the tasks cannot be listed. What goes wrong with one task is its
        outcome.
        """
        try:
            action = BulkAction(action)
        except ValueError:
            raise InvalidField("action", f"one of {', '.join(BulkAction)} is needed") from None
        wanted = TaskFilter.read(**filters)
        statuses = tuple(status for status in wanted.statuses if status in APPLIES[action])
        if not statuses:
            able = ", ".join(status.value for status in APPLIES[action])
            raise InvalidField("status", f"{action.value} applies to {able}")
        return await do_to_all(
            self.store,
            replace(wanted, statuses=statuses),
            partial(self._act, action, key=idempotency_key, before=before, reason=reason),
            leave_out=partial(is_made_under, action, idempotency_key),
            check=None
            if idempotency_key is None or action is not BulkAction.FORK
            else partial(self._check_fork, idempotency_key, before),
            dry_run=dry_run,
            limit=limits.count("limit", limit),
            concurrency=limits.count("concurrency", concurrency),
            progress=progress,
        )

    async def _check_fork(self, key: str, before: str | None, task: TaskSummary) -> None:
        made = named_under(BulkAction.FORK, key, task.session_id, task.task_id)
        view = await view_task(self.store, task.session_id, made)
        if view is not None and view.forked_from is not None:
            check_forked(view.forked_from, before)

    async def _act(
        self,
        action: BulkAction,
        task: TaskSummary,
        *,
        key: str | None,
        before: str | None,
        reason: str | None,
    ) -> str | None:
        session_id, task_id = task.session_id, task.task_id
        named = None if key is None else named_under(action, key, session_id, task_id)
        match action:
            case BulkAction.RETRY:
                reopened = await self._reopening.retry(session_id, task_id, key=named)
                if reopened.before and reopened.state.status in APPLIES[action]:
                    again = (
                        f"this call has reopened it, and it is {reopened.state.status.value} again"
                    )
                    raise RetryRefused(task_id, f"{again}: use another idempotency_key")
            case BulkAction.CANCEL:
                if not await self.cancel(session_id, task_id, reason=reason):
                    raise InvalidTransition(task_id, current="terminal", wanted="CANCELLED")
            case BulkAction.RERUN:
                return await self.rerun(session_id, task_id, new_task_id=named)
            case BulkAction.FORK:
                return await self.fork(session_id, task_id, before=before, new_task_id=named)
        return None

    async def _copy(
        self,
        source: Source,
        task_id: str | None,
        session_id: str,
        queue: str | None,
        create: Callable[[TaskState, str], Awaitable[bool]],
    ) -> str:
        """Write a task that is made from another, and queue it; return its id."""
        state = source.copy(task_id=task_id, session_id=session_id)
        check_id("new_session_id", state.session_id)
        check_id("new_task_id", state.task_id)
        if task_id and await self._still_there(state.session_id, state.task_id):
            return state.task_id
        queue = limits.name_or("queue", queue, source.queue or self._queue.name)
        if await create(state, queue):
            names = (state.session_id, state.task_id)
            await self._queue.put(
                Job(*names, 0, state.priority, queue, key=source.key_in(names[0]))
            )
        else:
            await self._still_there(state.session_id, state.task_id)
        return state.task_id

    async def _still_there(self, session_id: str, task_id: str) -> bool:
        """Return whether a task exists; queue it if it waits and the queue lost it.

        It is put into the queue that it was submitted to.
        """
        status_view = await self.store.tasks.look(session_id, task_id)
        if status_view is not None and not status_view.ours:
            raise InvalidField("task_id", "a host has saved a task of this id, with no handler")
        if status_view is not None and status_view.status is TaskStatus.PENDING:
            await self._queue.ensure_queued([Job.of(status_view)])
        return status_view is not None


def _check_copy(task_id: str | None, queue: str | None) -> None:
    limits.own_id("new_task_id", task_id)
    limits.name_or("queue", queue, "")


def _given(source: Source, attributes: Attributes | None) -> Attributes:
    return check_attributes("attributes", source.attributes if attributes is None else attributes)


def check_id(field: str, value: Any) -> None:
    """Errors: InvalidField for what is no text."""
    if not isinstance(value, str):
        raise InvalidField(field, f"text is needed, not {type(value).__name__}")
