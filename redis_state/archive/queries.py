"""Which tasks of an archive are wanted: the last that ended first, or in the order of places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from redis_state.archive.model import ArchivedTask, TaskEnd
from redis_state.models import TaskStatus


@dataclass(frozen=True, slots=True)
class ArchiveQuery:
    """Which tasks are wanted, the last that ended first. None wants any.

    ``after`` is the `end` of the task behind which they begin.
    """

    session_id: str | None = None
    task_id: str | None = None
    handler: str | None = None
    trace_id: str | None = None
    statuses: Sequence[TaskStatus] = ()
    ended_after: datetime | None = None
    ended_before: datetime | None = None
    after: TaskEnd | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class ArchiveListing:
    """Which tasks are wanted in the order of their creation. None wants any.

    ``after`` is the place behind which they begin, ``until`` the last place that is wanted, in the
    order of the listing. ``created_after`` is included, ``created_before`` is not. With
    ``ended_after`` or ``ended_before``, likewise, the order and the places are those of their ends.
    """

    session_id: str | None = None
    handler: str | None = None
    statuses: Sequence[TaskStatus] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    created_after: datetime | None = None
    created_before: datetime | None = None
    ended_after: datetime | None = None
    ended_before: datetime | None = None
    newest_first: bool = True
    after: bytes | None = None
    until: bytes | None = None
    limit: int = 100

    @property
    def by_end(self) -> bool:
        """Whether the order is that of the ends."""
        return self.ended_after is not None or self.ended_before is not None

    @property
    def bounds(self) -> tuple[datetime | None, datetime | None]:
        """Return the times between which the places are."""
        if self.by_end:
            return _utc(self.ended_after), _utc(self.ended_before)
        return _utc(self.created_after), _utc(self.created_before)

    @property
    def made_between(self) -> tuple[datetime | None, datetime | None]:
        """Return the times of creation that the places do not say."""
        if self.by_end:
            return _utc(self.created_after), _utc(self.created_before)
        return None, None

    def place_of(self, task: ArchivedTask) -> bytes:
        """Return a task's place in the order of this listing."""
        return task.end_place if self.by_end else task.place

    def was_made(self, created_at: datetime) -> bool:
        """Return whether a task was made between the times that the places do not say."""
        since, before = self.made_between
        return (since is None or since <= created_at) and (before is None or created_at < before)

    def matches(
        self, *, session_id: str, handler: str, status: TaskStatus, attributes: Mapping[str, Any]
    ) -> bool:
        """Return whether a task is wanted, by all but its time and place."""
        return (
            self.session_id in (None, session_id)
            and self.handler in (None, handler)
            and (not self.statuses or status in self.statuses)
            and all(
                # A number is no flag: 1 and True are two values.
                type(attributes.get(name)) is type(value) and attributes[name] == value
                for name, value in self.attributes.items()
            )
        )

    def reaches(self, place: bytes) -> bool:
        """Return whether a place is behind ``after``, and not behind ``until``."""
        if self.newest_first:
            return (self.after is None or place < self.after) and (
                self.until is None or place >= self.until
            )
        return (self.after is None or place > self.after) and (
            self.until is None or place <= self.until
        )


def _utc(moment: datetime | None) -> datetime | None:
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ArchivedPage:
    """Tasks in the order of a listing, without their journals.

    ``end`` is the place up to which the archive was read; None if nothing that is wanted follows.
    A page may have fewer tasks than the limit, or none, and still an end.
    """

    tasks: Sequence[ArchivedTask]
    end: bytes | None
