"""Find tasks over all sessions, by the index: a page costs the page, however many tasks there are.

The index proposes, the records decide: each task of a page is read, and left out if it does not
match. Each of the index's shards gives a part of a page in its order. A page ends where the first
of them would have to read more than it may. So a page of a rare combination may be short.

A place is a time and an id: the time of the creation, or that of the end with a filter of ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from redis_state import limits
from redis_state.errors import CorruptState, InvalidField
from redis_state.models import TaskStatus
from redis_state.primitives.record import picked
from redis_state.scripts import raw
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import updated_us
from redis_state.stores.task_index import TaskIndex, indexed_record, listed_us, stamp_of
from redis_state.transport.key_groups import TaskIndexKeys
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor
from redis_state.worker.tasks.views.summary import TaskSummary, summary_of, text_of
from redis_state.worker.tasks.views.task_filter import TaskFilter

LARGEST_PAGE = 1000
UNFINISHED = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PAUSED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The list of what has ended.
_ENDS = ("e", b"")
_TIME_BYTES = 7
PLACE_BYTES = _TIME_BYTES + 10
# How often a shard is read for one page at most, and how many tasks for one that may be returned.
_ROUNDS = 8
_READ_FOR_ONE = 8
# An entry without a record may belong to a task that is just being written.
_SETTLED = timedelta(minutes=5)
_FIELDS = (
    *("status", "version", "write", "priority", "document", "error", "updated", "queue"),
    *("worker", "attempts", "crashes", "retries", "parent", "attributes", "rerun_of"),
    *("forked_from", "updated_at"),
)


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page of tasks. ``cursor`` continues behind it; it is None at the end.

    A page may have fewer tasks than the limit, or none, and still a cursor. One that is
    ``incomplete`` lacks the archived tasks that belong there: the archive could not be read.
    """

    tasks: Sequence[TaskSummary]
    cursor: str | None
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class _Listed:
    """A task as the index lists it."""

    place: bytes
    stamp: str
    session_id: str
    task_id: str
    handler: str

    @property
    def entry(self) -> bytes:
        return watch_entry(self.session_id, self.task_id)

    @property
    def us(self) -> int:
        return int.from_bytes(self.place[:_TIME_BYTES], "big")


@dataclass(slots=True)
class _Shard:
    keys: TaskIndexKeys
    place: bytes
    more: bool = True
    listed: deque[_Listed] = field(default_factory=deque[_Listed])


async def find_tasks(
    store: RedisStateStore,
    wanted: TaskFilter,
    *,
    newest_first: bool = True,
    limit: int = 100,
    after: str | None = None,
) -> FoundPage:
    """See `TaskClient.find`."""
    check_limit(limit)
    listing = wanted.description(newest_first=newest_first)
    place = b"" if after is None else read_cursor(listing, after, length=PLACE_BYTES)
    found, end = await read_live(store, wanted, place, newest_first=newest_first, limit=limit)
    return FoundPage(
        [task for _, task in found], None if end is None else write_cursor(listing, end)
    )


async def walk_tasks(
    store: RedisStateStore, wanted: TaskFilter, *, size: int = LARGEST_PAGE
) -> AsyncGenerator[Sequence[TaskSummary]]:
    """Yield the tasks that match, a page of ``size`` at a time, the one made first, first.

    A task that matches from the first page to the last comes once, whatever happens to it and to
    others: its place is that of its creation, or of its end. Errors: BackendUnavailable.
    """
    cursor = None
    while True:
        page = await find_tasks(store, wanted, newest_first=False, limit=size, after=cursor)
        yield page.tasks
        cursor = page.cursor
        if cursor is None:
            return


def check_limit(limit: int) -> None:
    """Errors: InvalidField."""
    limits.count("limit", limit)
    if limit > LARGEST_PAGE:
        raise InvalidField("limit", f"must be at most {LARGEST_PAGE}")


async def read_live(
    store: RedisStateStore, wanted: TaskFilter, place: bytes, *, newest_first: bool, limit: int
) -> tuple[list[tuple[bytes, TaskSummary]], bytes | None]:
    """Return a page of tasks behind a place, each with its own, and the place where it ends.

    That is None at the end of the listing.
    """
    page = _Page(store, wanted, limit, place, newest=newest_first)
    listed, end = await page.read()
    found = await Verified(store).read(listed)
    return [
        (each.place, task)
        for each, task in zip(listed, found, strict=True)
        if task is not None and wanted.matches(task, each.us)
    ], end


class _Page:
    """One page: the shards' parts, merged in their order."""

    def __init__(
        self, store: RedisStateStore, wanted: TaskFilter, limit: int, place: bytes, *, newest: bool
    ) -> None:
        self._scripts = store.base.scripts
        self._wanted = wanted
        self._limit = limit
        self._newest = newest
        # A little more than each shard's part, so that a second round is rare.
        self._size = limit // WATCH_SHARDS * 3 // 2 + 6
        self._shards = [
            _Shard(store.base.keys.task_index(shard), place) for shard in range(WATCH_SHARDS)
        ]

    async def read(self) -> tuple[list[_Listed], bytes | None]:
        """Return the page, and the place behind which the next one begins, None at the end."""
        first, *others = await self._narrowest()
        listed: list[_Listed] = []
        for _ in range(_ROUNDS):
            needy = [shard for shard in self._shards if shard.more and not shard.listed]
            await asyncio.gather(*(self._fetch(shard, first, others) for shard in needy))
            self._merge(listed)
            rest = any(shard.more or shard.listed for shard in self._shards)
            if len(listed) == self._limit or not rest:
                return listed, listed[-1].place if rest and listed else None
        behind = [shard.place for shard in self._shards if shard.more and not shard.listed]
        return listed, max(behind) if self._newest else min(behind)

    def _merge(self, listed: list[_Listed]) -> None:
        """Take what is in order for certain: up to where a shard has to be read on."""
        choose = max if self._newest else min
        behind = [shard.place for shard in self._shards if shard.more and not shard.listed]
        bound = choose(behind) if behind else None
        while len(listed) < self._limit:
            heads = [shard for shard in self._shards if shard.listed]
            if not heads:
                return
            head = choose(heads, key=lambda shard: shard.listed[0].place)
            place = head.listed[0].place
            if bound is not None and place != choose(place, bound):
                return
            listed.append(head.listed.popleft())
            if head.more and not head.listed:
                # What it has not given yet comes before all that is behind its place.
                bound = head.place if bound is None else choose(bound, head.place)

    async def _narrowest(self) -> list[tuple[str, bytes]]:
        """Return the lists, the shortest first, by what one shard has of each."""
        lists = self._wanted.lists
        if self._wanted.by_end:
            return [_ENDS, *(each for each in lists if each[0] != "*"), *self._made()]
        if len(lists) == 1:
            return lists
        keys = self._shards[0].keys
        counted = await asyncio.gather(
            *(
                self._scripts.count_tasks(
                    keys, kind=kind, statuses=self._wanted.letters, values=[value]
                )
                for kind, value in lists
            )
        )
        lengths = [sum(map(int, reply.facts[1:])) for reply in counted]
        return [lists[at] for at in sorted(range(len(lists)), key=lengths.__getitem__)]

    def _made(self) -> list[tuple[str, bytes]]:
        """Return the times of creation as conditions of a list that has another order."""
        bounds = ((">", self._wanted.created_after), ("<", self._wanted.created_before))
        return [(sign, b"%d" % listed_us(at)) for sign, at in bounds if at is not None]

    async def _fetch(
        self, shard: _Shard, first: tuple[str, bytes], others: Sequence[tuple[str, bytes]]
    ) -> None:
        low, high = self._bounds(shard.place)
        reply = await self._scripts.find_tasks(
            shard.keys,
            kind=first[0],
            value=first[1],
            statuses=self._wanted.letters,
            newest=self._newest,
            low=low,
            high=high,
            size=self._size,
            most=self._size * (_READ_FOR_ONE if others else 1),
            wanted=[raw(kind) + value for kind, value in others],
        )
        more, last, *facts = reply.facts
        shard.more, shard.place = bool(more), bytes(last) or shard.place
        for at in range(0, len(facts), 5):
            place, stamp, session_id, task_id, handler = facts[at : at + 5]
            shard.listed.append(
                _Listed(place, *(text_of(fact) for fact in (stamp, session_id, task_id, handler)))
            )

    def _bounds(self, place: bytes) -> tuple[bytes, bytes]:
        wanted = self._wanted
        low, high = (
            place_bounds(wanted.ended_after, wanted.ended_before)
            if wanted.by_end
            else place_bounds(wanted.created_after, wanted.created_before)
        )
        if place and self._newest:
            return low, b"(" + place
        return (b"(" + place, high) if place else (low, high)


class Verified:
    """Read the records of what the index lists, and correct it where it is wrong."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._index = TaskIndex(store.base.scripts, store.base.keys)

    async def read(self, listed: Sequence[_Listed]) -> list[TaskSummary | None]:
        """Return each task as its record has it, None for one that is gone or unreadable."""
        return await asyncio.gather(*map(self._one, listed))

    async def _one(self, listed: _Listed) -> TaskSummary | None:
        session_id, task_id = listed.session_id, listed.task_id
        key = self._store.base.keys.task(session_id, task_id)
        reply = self._store.transport.commands.hmget(key, *_FIELDS)
        try:
            values = await self._store.base.scripts.read(reply, key, command="HMGET")
            record = picked(_FIELDS, values)
            if record is None or "status" not in record.fields:
                self._gone(listed)
                return None
            status = TaskStatus(record.fields["status"].decode())
            stamp = stamp_of(
                status,
                int(record.version),
                record.version.write,
                updated_us=updated_us(record.fields),
            )
            handler = listed.handler
            if stamp != listed.stamp:
                handler = await self._correct(listed)
            payloads = self._store.base.payloads
            return summary_of(session_id, task_id, status, handler, record, payloads=payloads)
        except (ValueError, KeyError, TypeError, CorruptState):
            return None

    async def _correct(self, listed: _Listed) -> str:
        """Write into the index what the record says; return its handler."""
        record = await self._store.tasks.load_fields(listed.session_id, listed.task_id)
        if record is None:
            raise KeyError(listed.task_id)
        ttl_ms = self._store.tasks.listed_ms(record.fields["status"].decode())
        task = indexed_record(
            listed.entry, listed.session_id, listed.task_id, record, ttl_ms=ttl_ms
        )
        self._index.correct(task, stamp=listed.stamp)
        return task.handler

    def _gone(self, listed: _Listed) -> None:
        if moment_of(listed.us) < datetime.now(UTC) - _SETTLED:
            self._index.drop(listed.entry, stamp=listed.stamp)


def place_bounds(since: datetime | None, before: datetime | None) -> tuple[bytes, bytes]:
    """Return the lowest place of what is listed since a time, and the highest before another."""
    return (
        b"[" if since is None else b"[" + _time(since),
        b"(\xff" if before is None else b"(" + _time(before),
    )


def _time(moment: datetime) -> bytes:
    return listed_us(moment).to_bytes(_TIME_BYTES, "big")


def moment_of(us: int) -> datetime:
    """Return the time by which a task is listed."""
    return _EPOCH + timedelta(microseconds=us)
