"""Updates of an archived session, in pages that read a bounded part of it."""

from __future__ import annotations

from functools import partial

from redis_state.errors import CursorGap
from redis_state.models import StateUpdate
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.session_log import Entry, EntryPage

# So many rows of an archived session are read at a time, and so often for one page.
_PART, _MOST_PARTS = 1_000, 10


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
