"""Pages of the list of dead tasks, the last given up first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from redis_state import limits
from redis_state.errors import CorruptState, InvalidField
from redis_state.models import TaskState, TaskStatus
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor

LARGEST_PAGE = 1_000
_LISTING = "dead"
_READ = 100
# So many entries are looked at for a page, if few of them are of dead tasks.
_MOST_READ = 1_000


@dataclass(frozen=True, slots=True)
class DeadPage:
    """A page of dead letters. ``cursor`` continues behind it; it is None at the end.

    A page may have fewer tasks than the limit, or none, and still a cursor.
    """

    tasks: Sequence[TaskState]
    cursor: str | None


class _Place(NamedTuple):
    """Where an entry stands: by when it is forgotten, then by its name."""

    score: float
    member: bytes

    @property
    def written(self) -> bytes:
        return b"%.0f " % self.score + self.member

    @classmethod
    def read(cls, written: bytes) -> _Place:
        score, _, member = written.partition(b" ")
        if not score.isdigit() or not member:
            raise InvalidField("after", "is no cursor of this listing")
        return cls(float(score), member)


async def list_dead(store: RedisStateStore, *, limit: int, after: str | None) -> DeadPage:
    """See `TaskClient.list_dead`."""
    limits.count("limit", limit)
    if limit > LARGEST_PAGE:
        raise InvalidField("limit", f"must be at most {LARGEST_PAGE}")
    place = None if after is None else _Place.read(read_cursor(_LISTING, after))
    found: list[TaskState] = []
    looked_at = 0
    async with aclosing(_behind(store, place)) as read:
        async for entries in read:
            loads = (_load(store, each.member) for each in entries)
            for each, state in zip(entries, await asyncio.gather(*loads), strict=True):
                if state is not None and len(found) == limit:
                    return _page(found, place)
                found += [] if state is None else [state]
                place = each
            looked_at += len(entries)
            if looked_at >= _MOST_READ:
                return _page(found, place)
    return DeadPage(found, None)


async def list_first_dead(store: RedisStateStore, limit: int) -> list[TaskState]:
    """Return the first of all pages, at most ``limit``."""
    found: list[TaskState] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await list_dead(store, limit=min(limit - len(found), LARGEST_PAGE), after=cursor)
        found += page.tasks
        cursor = page.cursor
        if cursor is None:
            break
    return found


def _page(found: Sequence[TaskState], place: _Place | None) -> DeadPage:
    return DeadPage(found, None if place is None else write_cursor(_LISTING, place.written))


async def _behind(
    store: RedisStateStore, place: _Place | None
) -> AsyncGenerator[list[_Place], None]:
    """Yield what is listed behind a place, the last given up first.

    Not by rank: an entry that leaves the list, or comes to it, moves no other.
    """
    commands, index, count = store.transport.commands, store.base.keys.dead_tasks(), _READ
    while True:
        highest = b"+inf" if place is None else b"%.0f" % place.score
        flat: list[bytes] = await commands.zrevrange_up_to(index, highest, count=count)
        listed = [
            _Place(float(score), member)
            for member, score in zip(flat[::2], flat[1::2], strict=True)
        ]
        entries = [each for each in listed if place is None or each < place]
        if entries:
            yield entries
            place = entries[-1]
        if len(listed) < count:
            return
        # Only with more entries of one microsecond than were read.
        count = _READ if entries else 2 * count


async def _load(store: RedisStateStore, member: bytes) -> TaskState | None:
    """Return a task that is dead; None for what was not failed after it was listed, or is gone.

    And for one whose record cannot be read: `inspect` says why.
    """
    session_id, task_id = codec.decode(member)
    try:
        found = await store.tasks.look(session_id, task_id)
    except CorruptState:
        return None
    if found is None or found.status is not TaskStatus.FAILED:
        return None
    if not found.crashes:
        key = store.base.keys.task(session_id, task_id)
        # An earlier version of the library reopens a task, and leaves the field.
        if await store.transport.commands.hget(key, "dead") != b"%d" % (found.retries + 1):
            return None
    return await store.tasks.load(session_id, task_id)
