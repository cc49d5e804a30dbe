"""Find tasks in Redis and in the archive, in one order, with one cursor.

A task has the same place in the index and in the archive: its time of creation, and a digest of its
ids. What is found by its end has the time of that instead. So a cursor is a place, and a task that
leaves Redis between two pages comes once. A page reads Redis first: what has left it by then is in
the archive already. Whatever Redis has of a task is the truth. The archive may still have an
earlier end of one that was retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from redis_state.archive.encoding import place_us
from redis_state.archive.model import ArchivedTask
from redis_state.archive.queries import ArchivedPage, ArchiveListing
from redis_state.errors import ArchiveUnavailable, CorruptState, InvalidField
from redis_state.models import TaskStatus
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor
from redis_state.worker.tasks.views.finding import PLACE_BYTES, FoundPage, check_limit, read_live
from redis_state.worker.tasks.views.summary import TaskSummary, read_summary, summary_of
from redis_state.worker.tasks.views.task_filter import TaskFilter

Placed = tuple[bytes, TaskSummary]


class Archived(StrEnum):
    """Whether tasks are found that are only in the archive by now."""

    NO = "no"
    ALSO = "also"
    ONLY = "only"

    @classmethod
    def read(cls, given: Archived | str) -> Archived:
        """Check what a caller asks for. Errors: InvalidField."""
        try:
            return cls(given)
        except ValueError:
            raise InvalidField("archived", f"one of {', '.join(cls)} is needed") from None


async def find_in_both(
    store: RedisStateStore,
    wanted: TaskFilter,
    *,
    archived: Archived,
    newest_first: bool,
    limit: int,
    after: str | None,
) -> FoundPage:
    """See `TaskClient.find`. Errors: ConfigError; ArchiveUnavailable for archived tasks alone."""
    check_limit(limit)
    reader = store.archive
    listing = [*wanted.description(newest_first=newest_first), archived.value]
    place = b"" if after is None else read_cursor(listing, after, length=PLACE_BYTES)
    live: list[Placed] = []
    end: bytes | None = None
    if archived is Archived.ALSO:
        live, end = await read_live(store, wanted, place, newest_first=newest_first, limit=limit)
    asked = _listing(wanted, place, end, newest_first=newest_first, limit=limit)
    incomplete, kept = False, ArchivedPage((), None)
    try:
        if asked is not None:
            kept = await reader.soon(lambda: reader.archive.find(asked))
    except ArchiveUnavailable:
        if archived is Archived.ONLY:
            raise
        incomplete = True
    seen = {place for place, _ in live}
    placed = [] if asked is None else [(asked.place_of(task), task) for task in kept.tasks]
    tasks = [each for each in placed if each[0] not in seen]
    found = await _verified(store, wanted, tasks, archived)
    page, end = _merge(live + found, [end, kept.end], newest=newest_first, limit=limit)
    return FoundPage(
        [task for _, task in page],
        None if end is None else write_cursor(listing, end),
        incomplete=incomplete,
    )


def archived_summary(store: RedisStateStore, task: ArchivedTask) -> TaskSummary | None:
    """Describe an archived task; None if its record cannot be read."""
    named = (task.session_id, task.task_id, task.status, task.handler or None)
    try:
        made = summary_of(*named, task.as_stored, payloads=store.base.payloads)
    except (ValueError, KeyError, TypeError, CorruptState):
        return None
    return replace(made, archived=True)


def _listing(
    wanted: TaskFilter, place: bytes, end: bytes | None, *, newest_first: bool, limit: int
) -> ArchiveListing | None:
    """Return what is wanted of the archive; None if it can have none of it."""
    statuses = tuple(status for status in wanted.statuses if status.is_terminal)
    if not statuses:
        return None
    everything = set(statuses) == {status for status in TaskStatus if status.is_terminal}
    return ArchiveListing(
        session_id=wanted.session_id,
        handler=wanted.handler,
        statuses=() if everything else statuses,
        attributes=wanted.attributes,
        created_after=wanted.created_after,
        created_before=wanted.created_before,
        ended_after=wanted.ended_after,
        ended_before=wanted.ended_before,
        newest_first=newest_first,
        after=place or None,
        until=end,
        limit=limit,
    )


async def _verified(
    store: RedisStateStore,
    wanted: TaskFilter,
    tasks: Sequence[tuple[bytes, ArchivedTask]],
    archived: Archived,
) -> list[Placed]:
    """Leave out what Redis has, or take it from there if the index did not list it.

    What Redis has may have another end, and so another place, since it was retried.
    """
    standing = await asyncio.gather(
        *(read_summary(store, task.session_id, task.task_id) for _, task in tasks)
    )
    found: list[Placed] = []
    for (place, task), (order, live) in zip(tasks, standing, strict=True):
        one = live
        if order is None:
            one = archived_summary(store, task)
        elif order != task.born_us or archived is Archived.ONLY:
            one = None
        if one is not None and wanted.matches(one, place_us(place)):
            found.append((place, one))
    return found


def _merge(
    found: Sequence[Placed], ends: Sequence[bytes | None], *, newest: bool, limit: int
) -> tuple[list[Placed], bytes | None]:
    """Return a page in order, as far as both were read, and where it ends."""
    by_place: Mapping[bytes, Placed] = {placed[0]: placed for placed in found}
    bounds = [end for end in ends if end is not None]
    end = (max(bounds) if newest else min(bounds)) if bounds else None
    page = [
        by_place[place]
        for place in sorted(by_place, reverse=newest)
        if end is None or (place >= end if newest else place <= end)
    ]
    if len(page) > limit:
        return page[:limit], page[limit - 1][0]
    return page, end
