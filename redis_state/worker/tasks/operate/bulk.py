"""Do one thing to all tasks that match: retry, rerun, fork or cancel them.

What matches is found page by page, the oldest first, and no task that is made meanwhile. By the
times of their ends it is the first that ended first, and none that ends meanwhile. Each task has an
outcome of its own. A task that cannot be changed does not end the whole.

A copy that is made under a key has an id that follows from the key and the task. So a repeated call
finds the copies of the calls before it by their ids, and does not copy them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeAlias

from redis_state.errors import BackendError, CallerError, LostRace
from redis_state.models import TaskStatus
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.views.finding import find_tasks
from redis_state.worker.tasks.views.summary import TaskSummary
from redis_state.worker.tasks.views.task_filter import TaskFilter

_PAGE = 100
_CUT_OFF = "cut off: it may have happened"


class BulkAction(StrEnum):
    """What is done to each task."""

    RETRY = "retry"
    RERUN = "rerun"
    FORK = "fork"
    CANCEL = "cancel"


class BulkOutcome(StrEnum):
    """What became of one task. ``WOULD`` is that of a dry run."""

    WOULD = "would"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


# What an action applies to, if the caller does not say. No action changes what is not among these.
APPLIES: dict[BulkAction, tuple[TaskStatus, ...]] = {
    BulkAction.RETRY: (TaskStatus.FAILED, TaskStatus.CANCELLED),
    BulkAction.RERUN: tuple(TaskStatus),
    BulkAction.FORK: tuple(TaskStatus),
    BulkAction.CANCEL: (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PAUSED),
}


@dataclass(frozen=True, slots=True)
class BulkItem:
    """One task, and what became of it. ``new_task_id`` is what a rerun or a fork made."""

    session_id: str
    task_id: str
    status: TaskStatus
    outcome: BulkOutcome
    new_task_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What became of all of them. ``more`` says that ``limit`` was reached and others match."""

    items: Sequence[BulkItem]
    more: bool
    counts: dict[BulkOutcome, int] = field(default_factory=dict[BulkOutcome, int])


def named_under(action: BulkAction, key: str, session_id: str, task_id: str) -> str:
    """Return the id of what a call with this key makes of a task."""
    return codec.fingerprint("bulk", action.value, key, session_id, task_id)


def is_made_under(action: BulkAction, key: str | None, task: TaskSummary) -> bool:
    """Return whether a call with this key made the task."""
    made_from = {BulkAction.RERUN: task.rerun_of, BulkAction.FORK: task.forked_from}.get(action)
    if key is None or made_from is None:
        return False
    return task.task_id == named_under(action, key, made_from.session_id, made_from.task_id)


# Does the action to one task; returns the id of what it made, or None.
Act: TypeAlias = Callable[[TaskSummary], Awaitable[str | None]]
Progress: TypeAlias = Callable[[BulkItem], object]


async def do_to_all(
    store: RedisStateStore,
    wanted: TaskFilter,
    act: Act,
    *,
    leave_out: Callable[[TaskSummary], bool],
    check: Callable[[TaskSummary], Awaitable[None]] | None,
    dry_run: bool,
    limit: int,
    concurrency: int,
    progress: Progress | None,
) -> BulkReport:
    """See `TaskClient.bulk`. ``check`` may refuse it, before a task of a page is changed."""
    now = datetime.now(UTC)
    wanted = replace(wanted, created_before=_until(wanted.created_before, now))
    if wanted.by_end:
        wanted = replace(wanted, ended_before=_until(wanted.ended_before, now))
    items: list[BulkItem] = []
    # One that ends again has a later place, whatever the clock of its worker says.
    seen: set[tuple[str, str]] = set()
    cursor: str | None = None
    gate = asyncio.Semaphore(concurrency)
    while True:
        size = min(_PAGE, limit - len(items))
        page = await find_tasks(store, wanted, newest_first=False, limit=size, after=cursor)
        cursor = page.cursor
        tasks = [
            task
            for task in page.tasks
            if not leave_out(task) and (task.session_id, task.task_id) not in seen
        ]
        seen |= {(task.session_id, task.task_id) for task in tasks}
        if check is not None:
            await asyncio.gather(*map(check, tasks))
        begun = [asyncio.create_task(_one(task, act, gate, dry_run=dry_run)) for task in tasks]
        try:
            for item in asyncio.as_completed(begun):
                items.append(await item)
                if progress is not None:
                    progress(items[-1])
        except asyncio.CancelledError:
            reported = {*items}
            for end in await _cut_off(begun):
                if progress is not None and end not in reported:
                    progress(end)
            raise
        finally:
            # Nor does a caller whose `progress` fails change more of them.
            await _cut_off(begun)
        if cursor is None or len(items) >= limit:
            break
    counts = {word: sum(item.outcome is word for item in items) for word in BulkOutcome}
    return BulkReport(items, cursor is not None, counts)


def _until(before: datetime | None, now: datetime) -> datetime:
    if before is None:
        return now
    return min(before if before.tzinfo else before.replace(tzinfo=UTC), now)


async def _cut_off(begun: Sequence[asyncio.Task[BulkItem]]) -> list[BulkItem]:
    """Begin no more of them; return what became of those that had begun."""
    for each in begun:
        each.cancel()
    ends = await asyncio.gather(*begun, return_exceptions=True)
    return [end for end in ends if isinstance(end, BulkItem)]


async def _one(task: TaskSummary, act: Act, gate: asyncio.Semaphore, *, dry_run: bool) -> BulkItem:
    item = BulkItem(task.session_id, task.task_id, task.status, BulkOutcome.WOULD)
    if dry_run:
        return item
    async with gate:
        try:
            made = await act(task)
        except (LostRace, CallerError) as refused:
            return replace(item, outcome=BulkOutcome.REFUSED, reason=str(refused))
        except BackendError as error:
            return replace(item, outcome=BulkOutcome.FAILED, reason=str(error))
        except asyncio.CancelledError:
            # An end like the others: who is cut off learns of it.
            return replace(item, outcome=BulkOutcome.FAILED, reason=_CUT_OFF)
    return replace(item, outcome=BulkOutcome.DONE, new_task_id=made)
