"""Updates that Redis may not have any more, in pages that read a bounded part of the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from redis_state.errors import ArchiveUnavailable, CursorGap
from redis_state.gateway.streaming.events import position
from redis_state.models import StateUpdate
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.session_log import Entry, EntryPage

# So many rows of an archived session are read at a time, and so often for one page.
_PART, _MOST_PARTS = 1_000, 10
# A host may save the first updates of a task before the task.
_BEFORE_BIRTH_MS = 60_000


@dataclass(frozen=True, slots=True)
class ReadUpdates:
    """A page of updates, and the gap before it. ``incomplete``: the archive could not be read."""

    page: EntryPage[StateUpdate]
    gap: CursorGap | None = None
    incomplete: bool = False

    @property
    def missed(self) -> int | None:
        """How many rows are missing before the page, if that is known."""
        return None if self.gap is None else self.gap.missed


async def updates_over_gap(
    read: Callable[[str | None], Awaitable[EntryPage[StateUpdate]]], after: str | None
) -> ReadUpdates:
    """Read a page after a cursor, or the one behind the gap that follows it."""
    try:
        return ReadUpdates(await read(after))
    except CursorGap as gap:
        return ReadUpdates(await read(gap.resume_after), gap)


async def updates_of_task(
    store: RedisStateStore, session_id: str, task_id: str, *, after: str | None, limit: int
) -> ReadUpdates:
    """Read a page of the updates of a task that Redis has: of the archive what its log has lost.

    Without the archive it is what Redis has.
    """

    async def live(place: str | None) -> EntryPage[StateUpdate]:
        return await store.read_updates(session_id, after=place, task_id=task_id, limit=limit)

    async def through(place: str | None) -> EntryPage[StateUpdate]:
        if place is None:
            place = await _lost_from(store, session_id, task_id)
        if place is None:
            return await live(None)
        return await updates_through(store, session_id, after=place, limit=limit, task_id=task_id)

    if not store.settings.has_archive:
        return await updates_over_gap(live, after)
    try:
        return await updates_over_gap(through, after)
    except ArchiveUnavailable:
        found = await updates_over_gap(live, after)
        return ReadUpdates(found.page, found.gap, incomplete=True)


async def _lost_from(store: RedisStateStore, session_id: str, task_id: str) -> str | None:
    """Return where the archive has the first updates of a task; None if Redis has all of them."""
    record = store.tasks.keys(session_id, task_id).task
    head, order = await asyncio.gather(
        store.updates.page(session_id, after=None, limit=1, task_id=None),
        store.transport.commands.hget(record, "order"),
    )
    if order is None:
        return None
    born_ms = int(order) // 1000
    _, ms = position(head.cursor)
    is_empty = head.at_end and not head.entries
    first_ms = max(0, born_ms - _BEFORE_BIRTH_MS)
    # A log that begins with row 1 may not be the first: one expires whole, or is lost.
    if not is_empty and ms < first_ms:
        return None
    reader, place = store.archive, (0, first_ms)
    rows = await reader.soon(
        lambda: reader.archive.rows(session_id, after=place, count=1, over_gaps=True)
    )
    if not rows or (not is_empty and rows[0].ms >= ms):
        return None
    return f"{rows[0].n - 1}-{rows[0].ms}"


async def updates_through(
    store: RedisStateStore,
    session_id: str,
    *,
    after: str | None,
    limit: int,
    task_id: str | None = None,
) -> EntryPage[StateUpdate]:
    """Read a page of a session's updates, or of one task's. The archive is read if need be.

    It may be empty before the end. Errors: CursorGap, ArchiveUnavailable.
    """
    live = partial(store.read_updates, session_id, after=after, task_id=task_id, limit=limit)
    if not store.settings.has_archive:
        return await live()
    # Of a place before the first row Redis does not know in which of several logs it is.
    if after is not None and not after.lstrip("0").startswith("-"):
        with suppress(CursorGap):
            return await live()
    return await archived_updates(store, session_id, after=after, limit=limit, task_id=task_id)


async def archived_updates(
    store: RedisStateStore,
    session_id: str,
    *,
    after: str | None,
    limit: int,
    task_id: str | None = None,
) -> EntryPage[StateUpdate]:
    """Read a page of a session's updates, or of one task's, from the archive and Redis.

    It may be empty before the end. Errors: CursorGap, ArchiveUnavailable.
    """
    reader, entries, parts = store.archive, list[Entry[StateUpdate]](), 0
    while True:
        room = limit - len(entries)
        # Without a task every row counts. One more says whether there is more.
        count = min(_PART, room + 1) if task_id is None else _PART
        part = partial(reader.updates, session_id, after=after, limit=count, task_id=task_id)
        try:
            page = await reader.soon(part)
        except CursorGap:
            if after is None or not parts:
                raise
            # What is before the gap comes first. The next page begins with the gap.
            return EntryPage(entries, after, at_end=False)
        parts += 1
        entries += page.entries[:room]
        if len(page.entries) > room:
            return EntryPage(entries, entries[-1].cursor, at_end=False)
        if page.at_end or len(entries) == limit or parts == _MOST_PARTS:
            return EntryPage(entries, page.cursor, at_end=page.at_end)
        after = page.cursor
