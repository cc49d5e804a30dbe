"""What waits to be archived: two watch lists, in the slots of the tasks' watch list.

A sweeper puts a session on its list when it sees a task of it, the archiver before it marks one.
The session stays there until its updates have expired. So the updates that the end of a task holds
are let go of.

A task is on the tasks' watch list from before it is made. The sweeper puts it on this list before
it removes it from that one. Both entries are in one slot, so they go back together. So no task
that has ended is on neither list before it is archived, whatever dies, and while nothing is
archived nothing is written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from redis_state.primitives.waiting_since import WaitingSince
from redis_state.primitives.watchlist import WatchList, read_entry
from redis_state.scripts import topic_text
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import LISTED_MS, session_entry
from redis_state.stores.sessions.task_status import watch_entry


@dataclass(frozen=True, slots=True)
class ArchiveBacklog:
    """How many tasks wait to be archived, and for how long the first of them, in seconds."""

    tasks: int
    oldest_s: float


class ArchiveList:
    """The tasks and the sessions that are to be archived."""

    def __init__(self, store: RedisStateStore) -> None:
        scripts, self._keys = store.base.scripts, store.base.keys
        self._scripts = scripts
        self._since = WaitingSince(scripts, self._keys.archive_since)
        self.tasks: WatchList = WatchList(
            scripts,
            self._keys,
            key_of=self._keys.archive_watch,
            since_of=self._keys.archive_since,
        )
        self.sessions: WatchList = WatchList(
            scripts, self._keys, key_of=self._keys.archive_sessions
        )

    async def enlist(self, session_id: str, task_id: str) -> None:
        """Put a task on the list that has ended. One write, which may be repeated.

        An archiver that looks at the task meanwhile does not remove it: it may have seen an earlier
        end.
        """
        entry = watch_entry(session_id, task_id)
        await asyncio.gather(
            self._scripts.add_member(
                self._since.key(entry), member=topic_text(entry) or "", ttl_ms=LISTED_MS
            ),
            self.tasks.bring_forward(entry, delay_ms=0),
        )

    async def watch_session(self, session_id: str, *, within_ms: int) -> None:
        """Put a session on its list, or have it looked at sooner. A sooner look stands.

        One that looks at the session meanwhile does not remove it.
        """
        await self.sessions.bring_forward(session_entry(session_id), delay_ms=within_ms)

    async def backlog(self) -> ArchiveBacklog:
        """Count what waits. Two reads for each shard."""
        tasks, oldest_s = await self._since.backlog(
            self._keys.archive_watch, ms_of_score=lambda score: score / 1000 - LISTED_MS
        )
        return ArchiveBacklog(tasks, oldest_s)


def session_of_entry(entry: bytes) -> str | None:
    """Return the session of an entry; None if it is none."""
    match read_entry(entry):
        case ["session", str(session_id)]:
            return session_id
        case _:
            return None
