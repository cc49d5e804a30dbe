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
from collections.abc import Iterable
from dataclasses import dataclass

from redis_state.primitives.watchlist.waiting_since import WaitingSince
from redis_state.primitives.watchlist.watchlist import WatchList, read_entry
from redis_state.scripts import topic_text
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import LISTED_MS, session_entry
from redis_state.stores.sessions.task_status import watch_entry

# One that is due is looked at within seconds, unless archivers rest or have too much to do.
_BEHIND_MS = 60_000
# Of each shard: more are not counted.
_MOST_OVERDUE = 1_000


@dataclass(frozen=True, slots=True)
class ArchiveBacklog:
    """How many tasks wait to be archived, and for how long the first of them, in seconds.

    And how many ``sessions`` are behind, at least: their updates could not be archived when they
    were due, or nothing has looked at them for a minute since. ``behind_s`` is for how long the
    first of them is.
    """

    tasks: int
    oldest_s: float
    sessions: int = 0
    behind_s: float = 0.0

    @property
    def age_s(self) -> float:
        """For how long the first of all of it waits, in seconds."""
        return max(self.oldest_s, self.behind_s)


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
        self._behind = WaitingSince(scripts, self._keys.archive_sessions_since)
        self.sessions: WatchList = WatchList(
            scripts,
            self._keys,
            key_of=self._keys.archive_sessions,
            since_of=self._keys.archive_sessions_since,
        )

    async def enlist(self, session_id: str, task_id: str) -> None:
        """Put a task on the list that has ended. One write, which may be repeated.

        Also on a full server: what is archived makes room. An archiver that looks at the task
        meanwhile does not remove it: it may have seen an earlier end.
        """
        entry = watch_entry(session_id, task_id)
        await asyncio.gather(
            self._scripts.add_member(
                self._since.key(entry), member=topic_text(entry) or "", ttl_ms=LISTED_MS
            ),
            self.tasks.bring_forward(entry, delay_ms=0, makes_room=True),
        )

    async def watch_session(self, session_id: str, *, within_ms: int) -> None:
        """Put a session on its list, or have it looked at sooner. A sooner look stands.

        Also on a full server. One that looks at the session meanwhile does not remove it.
        """
        await self.sessions.bring_forward(
            session_entry(session_id), delay_ms=within_ms, makes_room=True
        )

    async def note_looks(self, behind: Iterable[bytes], copied: Iterable[bytes]) -> None:
        """Record of which sessions' entries the updates could not be archived, and of which not.

        Before the entries are settled: who dies between the two has them due again.
        """
        await asyncio.gather(
            self._behind.note(behind, listed=self._keys.archive_sessions),
            self._behind.strike(copied),
        )

    async def strike_unlisted(self) -> None:
        """Forget of sessions that are off their list since when they are behind.

        An archiver of an earlier version takes them off the list alone.
        """
        await self._behind.strike_unlisted(self._keys.archive_sessions)

    async def backlog(self) -> ArchiveBacklog:
        """Count what waits. Six reads for each shard."""
        of_tasks = self._since.backlog(
            self._keys.archive_watch, ms_of_score=lambda score: score / 1000 - LISTED_MS
        )
        of_sessions = self._behind.backlog(self._keys.archive_sessions_since)
        # Of those that could not be archived most are not due, or all are: nothing archives.
        (tasks, oldest_s), (failed, failed_s), overdue = await asyncio.gather(
            of_tasks, of_sessions, self.sessions.count_overdue(by_ms=_BEHIND_MS, most=_MOST_OVERDUE)
        )
        due_s = await self.sessions.overdue_s() if overdue else 0.0
        return ArchiveBacklog(tasks, oldest_s, max(failed, overdue), max(failed_s, due_s))


def session_of_entry(entry: bytes) -> str | None:
    """Return the session of an entry; None if it is none."""
    match read_entry(entry):
        case ["session", str(session_id)]:
            return session_id
        case _:
            return None
