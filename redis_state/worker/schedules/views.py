"""A schedule as a client sees it, and the pages of a listing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

from redis_state.models import TaskStatus
from redis_state.store import RedisStateStore
from redis_state.stores.schedules import ScheduleStore, StoredSchedule
from redis_state.worker.schedules.model import Schedule
from redis_state.worker.schedules.triggers import from_ms


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A moment of a schedule, and its task.

    ``at`` is None for a task that `Schedules.trigger` submitted. ``state`` says what a backfill did
    or found: ``submitted``; ``exists``, so nothing was done; ``missing``, in a dry run.
    """

    at: datetime | None
    session_id: str
    task_id: str
    state: Literal["submitted", "exists", "missing"] | None = None


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as it stands.

    ``next_at`` is the next occurrence. It is in the past while no worker has looked, and None when
    the schedule is paused or has ended. ``last`` is the newest occurrence that was submitted, and
    ``last_status`` its task's status, None if it has expired or was not read. ``skipped_at`` is
    the newest occurrence that was left out, ``skipped_why`` is ``missed`` or ``running``.
    ``fired`` counts the occurrences that were submitted. ``revision`` changes with the definition.
    """

    schedule: Schedule
    paused: bool
    next_at: datetime | None
    last: Occurrence | None
    last_status: TaskStatus | None
    skipped_at: datetime | None
    skipped_why: str | None
    fired: int
    revision: str
    created_at: datetime


async def list_schedule_page(
    store: RedisStateStore, *, limit: int | None, after: str | None
) -> tuple[list[ScheduleView], str | None]:
    """Return schedules in the order of their ids, as `Schedules.list` does; and the last one's id
    if others follow.

    The records of the page alone are read: those of the ids behind ``after``.
    """
    found, last = await ScheduleStore(store.base).page(limit=limit, after=after)
    return schedule_views(store, found), last


def schedule_views(store: RedisStateStore, listed: Sequence[StoredSchedule]) -> list[ScheduleView]:
    """Read what was listed, without what cannot be read."""
    payloads, attempt = store.base.payloads, store.base.attempt

    def view(found: StoredSchedule) -> ScheduleView:
        return schedule_view(
            Schedule.read(found.definition, decode=payloads.as_object), found, None
        )

    views = [
        attempt("schedules", f"schedule {found.schedule_id}", b"", partial(view, found))
        for found in listed
    ]
    return [each for each in views if each is not None]


def schedule_view(
    schedule: Schedule, found: StoredSchedule, status: TaskStatus | None
) -> ScheduleView:
    """Return a schedule as it stands, with the status of its last task."""
    last = found.last
    next_ms = None if found.paused else schedule.trigger.next_after(found.after_ms)
    at_ms = None if last is None else last.at_ms
    return ScheduleView(
        schedule=schedule,
        paused=found.paused,
        next_at=_moment(next_ms),
        last=None if last is None else Occurrence(_moment(at_ms), last.session_id, last.task_id),
        last_status=status,
        skipped_at=_moment(found.skipped[0]) if found.skipped else None,
        skipped_why=found.skipped[1] if found.skipped else None,
        fired=found.fired,
        revision=schedule.revision,
        created_at=from_ms(found.order // 1000),
    )


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else from_ms(at_ms)
