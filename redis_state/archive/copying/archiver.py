"""The archiver of tasks: copies what has ended, and what its session has published.

    a task has ended       its record and journal, and its session's updates, are copied
    it has not, or is gone it is no longer on the list; an unfinished task is on the tasks' list
    it is marked           likewise
    a session has updates  what was appended since is copied, until its log has expired
    they were many         the session is looked at again soon: as many may come
    the archive is away    lifetimes are extended, and the entry is postponed

Every step may be repeated, by any process: see `ArchiverRounds`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from redis_state.archive.copying.pace import Pace
from redis_state.archive.copying.rounds import (
    AGAIN_MS,
    TROUBLE_MS,
    ArchiverRounds,
    CopyRound,
    DueCopy,
    RoundReport,
)
from redis_state.archive.copying.sizes import in_slices
from redis_state.archive.copying.updates import CopiedUpdates, Place, UpdateCopies
from redis_state.archive.erased import of_sessions, session_scope
from redis_state.archive.identity import KnownArchive
from redis_state.archive.model import ArchiveBatch, ArchivedTask, ArchiveVerdict
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import ArchiveList, session_of_entry
from redis_state.errors import (
    ArchiveUnavailable,
    CorruptState,
    NoConnection,
    RedisStateError,
    StoreFull,
)
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchClaim
from redis_state.scripts import JOURNAL_BYTES, JOURNAL_NAMES, Reply, ReplyCode
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import many_updates, session_check_ms
from redis_state.stores.base import ARCHIVE_HOLD_MS
from redis_state.stores.sessions.task_status import task_of_entry
from redis_state.stores.task_index import TaskIndex, indexed_move

log: logging.Logger = logging.getLogger(__name__)

_DAY_MS = 86_400_000
# So many tasks are in memory at once, whole.
_TOGETHER = 16


@dataclass(slots=True)
class ArchiveReport(RoundReport):
    """The result of one round of the archiver of tasks: tasks, and updates of sessions."""

    tasks: int = 0
    updates: int = 0


_Ended = DueCopy[ArchivedTask]
_Done = CopyRound[ArchiveReport]


class Archiver(ArchiverRounds[ArchivedTask, ArchiveReport]):
    """Archive the tasks and the sessions that are due."""

    what = "task"

    def __init__(
        self,
        store: RedisStateStore,
        archive: Archive,
        *,
        limit: int = 8,
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._list = ArchiveList(store)
        lists = self._list.tasks, self._list.sessions
        known = KnownArchive(store, archive)
        super().__init__(archive, known, lists, ArchiveReport, limit=limit, pace=pace)
        self._copies = UpdateCopies(store, archive, pace=self._pace)
        self._session_ms = session_check_ms(store.settings)
        self._many = many_updates(store.settings)
        self._index = TaskIndex(store.base.scripts, store.base.keys)

    async def _archive_all(self, claims: Sequence[Sequence[WatchClaim]], done: _Done) -> None:
        tasks, sessions = claims
        for start in range(0, max(len(tasks), len(sessions)), _TOGETHER):
            some = slice(start, start + _TOGETHER)
            await self._archive_apart(tasks[some], sessions[some], done)
            await self._pace.rest()

    async def _archive_apart(
        self, tasks: Sequence[WatchClaim], sessions: Sequence[WatchClaim], done: _Done
    ) -> None:
        """Archive some, each by itself if one is refused or cannot be read; set that one aside."""
        try:
            await self._archive_together(tasks, sessions, done)
        except (ArchiveUnavailable, CorruptState) as error:
            if isinstance(error, ArchiveUnavailable) and not error.refused:
                raise
            if len(tasks) + len(sessions) > 1:
                for each in tasks:
                    await self._archive_apart([each], (), done)
                for each in sessions:
                    await self._archive_apart((), [each], done)
                return
            log.error("a session's part cannot be archived: %s", error)  # noqa: TRY400 - as below
            named = [task[0] for each in tasks if (task := task_of_entry(each.entry))]
            named += [found for each in sessions if (found := session_of_entry(each.entry))]
            await self._look(tasks, least_ms=ARCHIVE_HOLD_MS // 2, whole=False)
            await self._copies.hold(named, least_ms=ARCHIVE_HOLD_MS // 2)
            for each in (*tasks, *sessions):
                done.refuse(each)

    async def _archive_together(
        self, tasks: Sequence[WatchClaim], sessions: Sequence[WatchClaim], done: _Done
    ) -> None:
        ended = await self._read(tasks, done)
        if not ended and not sessions:
            # The second look at what was archived: the archive has nothing to say.
            return
        await self._pace.rest()
        named = {each.entry: session_of_entry(each.entry) for each in sessions}
        of_tasks = {each.owner for each in ended}
        wanted = sorted(of_tasks | {each for each in named.values() if each is not None})
        marks = await self._archive.erased([session_scope(each) for each in wanted])
        erased = of_sessions(marks, wanted)
        # Once a task is marked, only this leads to the updates that its end holds.
        unclaimed = of_tasks.difference(named.values())
        await self._watch_sessions(unclaimed, within_ms=self._session_ms)
        ended = await self._without_erased(ended, erased, done)
        there = await self._copies.with_log(wanted)
        last: Mapping[str, Place] = await self._archive.last_rows(there) if there else {}
        copied = await self._copies.copy({each: last.get(each) for each in there}, erased)
        # Without a log there is nothing to copy. Most are looked at once more when it has expired.
        copied.whole |= dict.fromkeys(set(wanted).difference(there), 0)
        done.report.updates += copied.rows.total()
        done.report.missed += copied.missed
        whole = [each for each in ended if each.owner in copied.whole]
        done.settled |= {each.claim.entry: AGAIN_MS for each in ended}
        for some in in_slices(whole, lambda each: each.size):
            await self._pace.rest()
            await self._archive_some(some, done)
        await self._pace.rest()
        await self._copies.let_expire(copied.whole)
        many = [each for each in unclaimed if copied.rows[each] >= self._many]
        await self._watch_sessions(many, within_ms=AGAIN_MS)
        for entry, session_id in named.items():
            done.settled[entry] = await self._next_check(session_id, copied)

    async def _read(self, claims: Sequence[WatchClaim], done: _Done) -> list[_Ended]:
        replies = await self._look(claims, least_ms=_DAY_MS, whole=True)
        found: list[_Ended] = []
        for claim, reply in zip(claims, replies, strict=True):
            task = task_of_entry(claim.entry)
            if isinstance(reply, RedisStateError):
                log.error("a task cannot be read for the archive: %s", reply)
                done.refuse(claim)
                continue
            if task is None or reply is None or reply.word is not ReplyCode.OK:
                if reply is not None and reply.word is ReplyCode.COUNTED:
                    self._unlist_in_time(claim.entry, reply.text(0), reply.text(1))
                done.settled[claim.entry] = None
                continue
            try:
                ended = ArchivedTask.of(*task, reply.facts[1], reply.facts[2])
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                log.error("a record cannot be archived: %s", type(error).__name__)  # noqa: TRY400
                done.refuse(claim)
                continue
            size = sum(map(len, [*ended.record.values(), *ended.journal.values()]))
            found.append(DueCopy(claim, ended, ended.session_id, ended.key, size))
        return found

    async def _look(
        self, claims: Sequence[WatchClaim], *, least_ms: int, whole: bool
    ) -> list[Reply | RedisStateError | None]:
        """Look at tasks. What is wrong with one of them is returned in its place."""

        async def one(claim: WatchClaim) -> Reply | RedisStateError | None:
            task = task_of_entry(claim.entry)
            if task is None:
                return None
            try:
                reply = await self._read_ended(task, least_ms=least_ms, whole=whole)
            except (NoConnection, StoreFull):
                raise
            except RedisStateError as error:
                return error
            if reply.word is ReplyCode.MISSING:
                # It was removed after its end, which holds the updates of its session.
                await self._watch_sessions([task[0]], within_ms=AGAIN_MS)
            return reply

        return list(await asyncio.gather(*map(one, claims)))

    async def _read_ended(self, task: tuple[str, str], *, least_ms: int, whole: bool) -> Reply:
        """Read a task, and its journal call by call, if that is long: of one stamp, and whole.

        A task that was opened again meanwhile, or removed, is read again.
        """
        keys, scripts = self._store.tasks.keys(*task), self._store.base.scripts
        read = partial(
            scripts.read_ended,
            keys,
            least_ms=least_ms,
            hold_ms=ARCHIVE_HOLD_MS,
            whole=whole,
            most_bytes=JOURNAL_BYTES,
        )
        while True:
            reply = await read()
            if reply.word is not ReplyCode.OK:
                return reply
            stamp, _, journal, left = reply.facts
            while left:
                some = left[:JOURNAL_NAMES]
                more = await read(names=some)
                if more.word is not ReplyCode.OK or more.facts[0] != stamp:
                    break
                _, _, found, over = more.facts
                if len(found) // 2 + len(over) < len(some):
                    break
                journal += found
                left = [*over, *left[JOURNAL_NAMES:]]
            if not left:
                return reply

    def _batch(self, copies: Sequence[ArchivedTask]) -> ArchiveBatch:
        return ArchiveBatch(tasks=copies)

    def _others(self, verdict: ArchiveVerdict) -> Mapping[tuple[str, str, int], str | None]:
        return verdict.tasks

    async def _stamps(self, some: Sequence[_Ended]) -> list[str | None]:
        replies = await self._look([each.claim for each in some], least_ms=_DAY_MS, whole=False)
        return [
            reply.text(0) if isinstance(reply, Reply) and reply.word is ReplyCode.OK else None
            for reply in replies
        ]

    async def _hold_refused(self, due: _Ended) -> None:
        await self._look([due.claim], least_ms=ARCHIVE_HOLD_MS // 2, whole=False)

    async def _mark(self, due: _Ended) -> ReplyCode:
        keys = self._store.tasks.keys(due.copy.session_id, due.copy.task_id)
        return (await self._store.base.scripts.mark_archived(keys, stamp=due.copy.stamp)).word

    def _unlist_in_time(self, entry: bytes, stamp: str, status: str) -> None:
        """Shorten how long the index of tasks lists a task that the archive has.

        With the second look, before the entry is removed: who dies behind the mark has the entry.
        """
        version, _, write = stamp.partition(" ")
        ttl_ms = self._store.tasks.ttl_ms(status)
        with suppress(ValueError):
            self._index.moved(
                indexed_move(
                    entry, TaskStatus(status), version=int(version), write=write, ttl_ms=ttl_ms
                )
            )

    def _count(self, due: _Ended, report: ArchiveReport) -> None:
        del due
        report.tasks += 1

    def _title(self, due: _Ended) -> str:
        return f"task {due.copy.task_id!r} of session {due.owner!r}"

    async def _next_check(self, session_id: str | None, copied: CopiedUpdates) -> int | None:
        """Return when a session is looked at again; None once its log has expired."""
        if session_id is None:
            return None
        if session_id not in copied.whole:
            return AGAIN_MS
        # A log that was cleared keeps its numbers: who appends to it need not list it again.
        there = await self._copies.with_log([session_id])
        return self._delay_ms(session_id, copied) if there else None

    def _delay_ms(self, session_id: str, copied: CopiedUpdates) -> int:
        return AGAIN_MS if copied.rows[session_id] >= self._many else self._session_ms

    async def _watch_sessions(self, sessions: Iterable[str], *, within_ms: int) -> None:
        await asyncio.gather(
            *(self._list.watch_session(each, within_ms=within_ms) for each in sessions)
        )

    async def _settle(self, claims: Sequence[Sequence[WatchClaim]], done: _Done) -> None:
        # A session may be due for ever without an end: only this says that it is behind.
        _, sessions = claims
        looked = {each.entry for each in sessions if each.entry in done.settled}
        await self._list.note_looks(looked & done.behind, looked - done.behind)
        await super()._settle(claims, done)

    async def _keep(self, claims: Sequence[Sequence[WatchClaim]], done: _Done) -> None:
        tasks, sessions = claims
        left = [each for each in tasks if done.settled.get(each.entry, 0) is not None]
        replies = await self._look(left, least_ms=ARCHIVE_HOLD_MS // 2, whole=False)
        kept = {session_of_entry(each.entry) for each in sessions}
        for claim, reply in zip(left, replies, strict=True):
            task = task_of_entry(claim.entry)
            if isinstance(reply, RedisStateError):
                done.settled[claim.entry] = TROUBLE_MS
                continue
            if task is None or reply is None or reply.word is not ReplyCode.OK:
                done.settled[claim.entry] = None
                continue
            kept.add(task[0])
            done.postpone(claim, failures=self._failures)
        await self._copies.hold(
            [each for each in kept if each is not None], least_ms=ARCHIVE_HOLD_MS // 2
        )
        for claim in sessions:
            done.postpone(claim, failures=self._failures)
