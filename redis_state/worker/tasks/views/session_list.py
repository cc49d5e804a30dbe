"""Sessions that have tasks, and how many tasks there are: by the index alone.

What is counted is what the index lists. It may lag behind the records by moments, and includes
terminal tasks for as long as they are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.models.attributes import Attributes
from redis_state.store import RedisStateStore
from redis_state.stores.task_index import LETTERS
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor
from redis_state.worker.tasks.views.finding import LARGEST_PAGE, moment_of, place_bounds
from redis_state.worker.tasks.views.task_filter import TaskFilter

_LISTING = "sessions"
_STATUSES = "".join(LETTERS.values())
_WIDTH = len(LETTERS) + 1


@dataclass(frozen=True, slots=True)
class SessionTasks:
    """A session that has tasks: how many of each status, and when the newest was made."""

    session_id: str
    counts: Mapping[TaskStatus, int]
    newest_at: datetime


@dataclass(frozen=True, slots=True)
class SessionTaskPage:
    """A page of sessions. ``cursor`` continues behind it; it is None at the end."""

    sessions: Sequence[SessionTasks]
    cursor: str | None


async def list_sessions(
    store: RedisStateStore, *, limit: int, after: str | None
) -> SessionTaskPage:
    """See `TaskClient.sessions`."""
    limits.count("limit", limit)
    if limit > LARGEST_PAGE:
        raise InvalidField("limit", f"must be at most {LARGEST_PAGE}")
    place = b"" if after is None else read_cursor(_LISTING, after)
    if after is not None and not place.startswith(b"s"):
        raise InvalidField("after", "is no cursor of this listing: its filters are part of it")
    scripts = store.base.scripts
    replies = await asyncio.gather(
        *(
            scripts.list_sessions(store.base.keys.task_index(shard), after=place, size=limit + 1)
            for shard in range(WATCH_SHARDS)
        )
    )
    # A session's tasks are in several shards.
    named: dict[bytes, bytes] = {}
    for reply in replies:
        named |= zip(reply.facts[::2], reply.facts[1::2], strict=True)
    places = sorted(named)[:limit]
    tallies = await _count(store, "s", [named[each] for each in places])
    found = [
        SessionTasks(
            named[each].decode("utf-8", "surrogatepass"),
            counts,
            moment_of(newest_us),
        )
        for each, (newest_us, counts) in zip(places, tallies, strict=True)
        if any(counts.values())
    ]
    cursor = write_cursor(_LISTING, places[-1]) if len(named) > limit else None
    return SessionTaskPage(found, cursor)


async def count_tasks(
    store: RedisStateStore,
    *,
    handler: str | None,
    session_id: str | None,
    attributes: Attributes | None,
    ended_after: datetime | None,
    ended_before: datetime | None,
) -> dict[TaskStatus, int]:
    """See `TaskClient.count`."""
    wanted = TaskFilter.read(
        handler=handler,
        session_id=session_id,
        attributes=attributes,
        ended_after=ended_after,
        ended_before=ended_before,
    )
    kind, value = wanted.lists[0]
    if len(wanted.lists) > 1 or (wanted.by_end and kind != "*"):
        one = "a handler, session, attribute, or times of the end"
        raise InvalidField("attributes", f"one filter is needed: {one}")
    if wanted.by_end:
        return await _count_ended(store, wanted)
    ((_, counts),) = await _count(store, kind, [value])
    return counts


async def _count_ended(store: RedisStateStore, wanted: TaskFilter) -> dict[TaskStatus, int]:
    low, high = place_bounds(wanted.ended_after, wanted.ended_before)
    replies = await asyncio.gather(
        *(
            store.base.scripts.count_ended(
                store.base.keys.task_index(shard), statuses=wanted.letters, low=low, high=high
            )
            for shard in range(WATCH_SHARDS)
        )
    )
    columns = zip(*(reply.facts for reply in replies), strict=True)
    totals = [sum(map(int, column)) for column in columns]
    return dict.fromkeys(TaskStatus, 0) | dict(zip(wanted.statuses, totals, strict=True))


async def _count(
    store: RedisStateStore, kind: str, values: Sequence[bytes]
) -> list[tuple[int, dict[TaskStatus, int]]]:
    """Count the tasks under values of a kind, in all shards; return the newest's time too."""
    if not values:
        return []
    replies: Sequence[Any] = await asyncio.gather(
        *(
            store.base.scripts.count_tasks(
                store.base.keys.task_index(shard), kind=kind, statuses=_STATUSES, values=values
            )
            for shard in range(WATCH_SHARDS)
        )
    )
    found: list[tuple[int, dict[TaskStatus, int]]] = []
    for at in range(0, len(values) * _WIDTH, _WIDTH):
        rows = [list(map(int, reply.facts[at : at + _WIDTH])) for reply in replies]
        newest_us, *totals = zip(*rows, strict=True)
        found.append((max(newest_us), dict(zip(LETTERS, map(sum, totals), strict=True))))
    return found
