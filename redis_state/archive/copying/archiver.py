"""The archiver: copies what has ended, verifies it, marks it, and lets it expire.

    a task has ended       its record and journal, and its session's updates, are copied
    it has not, or is gone it is no longer on the list; an unfinished task is on the tasks' list
    it is marked           likewise
    a session has updates  what was appended since is copied, until its log has expired
    they were many         the session is looked at again soon: as many may come
    the archive is away    lifetimes are extended, and the entry is postponed

Every step may be repeated, by any process: the archive has primary keys, and the mark names the
version that was verified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from redis_state.archive.copying.ended import EndedTask, divided
from redis_state.archive.copying.pace import Pace
from redis_state.archive.copying.sizes import backoff_ms, in_slices
from redis_state.archive.copying.updates import CopiedUpdates, UpdateCopies
from redis_state.archive.model import ArchiveBatch, ArchivedTask
from redis_state.archive.protocol import Archive
from redis_state.archive.waiting import (
    ArchiveList,
    many_updates,
    session_look_ms,
    session_of_entry,
    task_of_entry,
)
from redis_state.errors import ArchiveUnavailable, NoConnection, RedisStateError, StoreFull
from redis_state.primitives.watchlist import WatchClaim
from redis_state.scripts import Reply, ReplyCode
from redis_state.store import RedisStateStore
from redis_state.stores.base import ARCHIVE_HOLD_MS
from redis_state.stores.sessions.task_status import watch_entry
from redis_state.stores.task_index import TaskIndex, indexed_move
from redis_state.transport.keys import WATCH_SHARDS

log: logging.Logger = logging.getLogger(__name__)

_HOLD_MS = 120_000
_DAY_MS = 86_400_000
_AGAIN_MS = 1_000
_TROUBLE_MS = 3_600_000
# So many tasks are in memory at once, whole.
_TOGETHER = 16

Settled = dict[bytes, int | None]


@dataclass(slots=True)
class ArchiveReport:
    """The result of one round. ``missed`` rows were trimmed before they were archived.

    ``postponed`` tasks and sessions wait for the archive; ``refused`` tasks it does not take.
    ``erased`` tasks are of before their session was erased: they expire, and are not copied.
    """

    looked: int = 0
    tasks: int = 0
    updates: int = 0
    missed: int = 0
    postponed: int = 0
    refused: int = 0
    erased: int = 0

    def __iadd__(self, other: ArchiveReport) -> Self:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


class Archiver:
    """Archive what is due on the lists of a store. ``limit`` bounds a round, for each shard.

    ``pace`` rests between the pieces of a round. By default it lets the loop run between them.
    """

    def __init__(
        self,
        store: RedisStateStore,
        archive: Archive,
        *,
        limit: int = 8,
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._archive = archive
        self._limit = limit
        self._list = ArchiveList(store)
        self._pace = pace or Pace()
        self._copies = UpdateCopies(store, archive, pace=self._pace)
        self._session_ms = session_look_ms(store.settings)
        self._many = many_updates(store.settings)
        self._index = TaskIndex(store.base.scripts, store.base.keys)
        self._failures = 0
        self._prepared = False

    @property
    def full(self) -> int:
        """From how many entries on a round is a full one, with more to come."""
        return self._limit * WATCH_SHARDS // 2

    async def run_once(self) -> ArchiveReport:
        """Archive what is due, once. Errors: BackendError, except ArchiveUnavailable.

        With an archive that is away it extends lifetimes and postpones.
        """
        report = ArchiveReport()
        self._pace.begin()
        tasks, sessions = await asyncio.gather(
            self._list.tasks.claim_due(limit=self._limit, hold_ms=_HOLD_MS),
            self._list.sessions.claim_due(limit=self._limit, hold_ms=_HOLD_MS),
        )
        report.looked = len(tasks) + len(sessions)
        if not tasks and not sessions:
            return report
        settled: Settled = {}
        try:
            await self._archive_all(tasks, sessions, settled, report)
            self._failures = 0
        except ArchiveUnavailable as error:
            if not self._failures:
                log.warning("%s; what has ended stays in Redis", error)
            self._failures += 1
            # It may have gone back to before it had tables.
            self._prepared = False
            await self._keep(tasks, sessions, settled, report)
        finally:
            await self._settle(tasks, sessions, settled)
        return report

    async def _archive_all(
        self,
        tasks: Sequence[WatchClaim],
        sessions: Sequence[WatchClaim],
        settled: Settled,
        report: ArchiveReport,
    ) -> None:
        if not self._prepared:
            await self._archive.prepare()
            self._prepared = True
        await self._pace.rest()
        for start in range(0, max(len(tasks), len(sessions)), _TOGETHER):
            some = slice(start, start + _TOGETHER)
            await self._archive_apart(tasks[some], sessions[some], settled, report)
            await self._pace.rest()

    async def _archive_apart(
        self,
        tasks: Sequence[WatchClaim],
        sessions: Sequence[WatchClaim],
        settled: Settled,
        report: ArchiveReport,
    ) -> None:
        """Archive some, each by itself if the archive refuses them; set aside what it refuses."""
        try:
            await self._archive_some(tasks, sessions, settled, report)
        except ArchiveUnavailable as error:
            if not error.refused:
                raise
            if len(tasks) + len(sessions) > 1:
                for each in tasks:
                    await self._archive_apart([each], (), settled, report)
                for each in sessions:
                    await self._archive_apart((), [each], settled, report)
                return
            log.error("a session's part cannot be archived: %s", error)  # noqa: TRY400 - as below
            report.refused += 1
            named = [task[0] for each in tasks if (task := task_of_entry(each.entry))]
            named += [found for each in sessions if (found := session_of_entry(each.entry))]
            await self._look(tasks, least_ms=ARCHIVE_HOLD_MS // 2, whole=False)
            await self._copies.hold(named, least_ms=ARCHIVE_HOLD_MS // 2)
            settled |= {each.entry: _TROUBLE_MS for each in (*tasks, *sessions)}

    async def _archive_some(
        self,
        tasks: Sequence[WatchClaim],
        sessions: Sequence[WatchClaim],
        settled: Settled,
        report: ArchiveReport,
    ) -> None:
        ended = await self._read(tasks, settled, report)
        if not ended and not sessions:
            # The second look at what was archived: the archive has nothing to say.
            return
        await self._pace.rest()
        named = {each.entry: session_of_entry(each.entry) for each in sessions}
        of_tasks = {each.task.session_id for each in ended}
        wanted = sorted(of_tasks | {each for each in named.values() if each is not None})
        erased = await self._archive.erased(wanted)
        # Once a task is marked, only this leads to the updates that its end holds.
        unclaimed = of_tasks.difference(named.values())
        await self._look_at_sessions(unclaimed, within_ms=self._session_ms)
        ended, gone = divided(ended, erased)
        # To be read they were kept from expiring. They are not to live longer for that.
        await asyncio.gather(*map(self._mark, gone))
        settled |= {each.claim.entry: None for each in gone}
        report.erased += len(gone)
        last = await self._archive.last_rows(wanted)
        copied = await self._copies.copy({each: last.get(each) for each in wanted}, erased)
        report.updates += copied.rows.total()
        report.missed += copied.missed
        whole = [each for each in ended if each.task.session_id in copied.whole]
        settled |= {each.claim.entry: _AGAIN_MS for each in ended}
        for some in in_slices(whole, lambda each: each.size):
            await self._pace.rest()
            await self._archive_tasks(some, settled, report)
        await self._pace.rest()
        await self._copies.let_expire(copied.whole)
        many = [each for each in unclaimed if copied.rows[each] >= self._many]
        await self._look_at_sessions(many, within_ms=_AGAIN_MS)
        for entry, session_id in named.items():
            settled[entry] = await self._next_look(session_id, copied)

    async def _read(
        self, claims: Sequence[WatchClaim], settled: Settled, report: ArchiveReport
    ) -> list[EndedTask]:
        replies = await self._look(claims, least_ms=_DAY_MS, whole=True)
        found: list[EndedTask] = []
        for claim, reply in zip(claims, replies, strict=True):
            task = task_of_entry(claim.entry)
            if isinstance(reply, RedisStateError):
                log.error("a task cannot be read for the archive: %s", reply)
                report.refused += 1
                settled[claim.entry] = _TROUBLE_MS
                continue
            if task is None or reply is None or reply.word is not ReplyCode.OK:
                settled[claim.entry] = None
                continue
            try:
                ended = ArchivedTask.of(*task, reply.facts[1], reply.facts[2])
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                log.error("a record cannot be archived: %s", type(error).__name__)  # noqa: TRY400
                report.refused += 1
                settled[claim.entry] = _TROUBLE_MS
                continue
            found.append(EndedTask(claim, ended))
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
                reply = await self._store.base.scripts.read_ended(
                    self._store.tasks.keys(*task),
                    least_ms=least_ms,
                    hold_ms=ARCHIVE_HOLD_MS,
                    whole=whole,
                )
            except (NoConnection, StoreFull):
                raise
            except RedisStateError as error:
                return error
            if reply.word is ReplyCode.MISSING:
                # It was removed after its end, which holds the updates of its session.
                await self._look_at_sessions([task[0]], within_ms=_AGAIN_MS)
            return reply

        return list(await asyncio.gather(*map(one, claims)))

    async def _archive_tasks(
        self, some: Sequence[EndedTask], settled: Settled, report: ArchiveReport
    ) -> None:
        batch = ArchiveBatch(tasks=[each.task for each in some])
        try:
            await self._archive.write(batch)
        except ArchiveUnavailable as error:
            if not error.refused:
                raise
            if len(some) > 1:
                for each in some:
                    await self._archive_tasks([each], settled, report)
                return
            log.error("a task cannot be archived: %s", error)  # noqa: TRY400 - the text says all
            report.refused += 1
            await self._look(
                [each.claim for each in some], least_ms=ARCHIVE_HOLD_MS // 2, whole=False
            )
            settled[some[0].claim.entry] = _TROUBLE_MS
            return
        await self._pace.rest()
        other = (await self._archive.verify(batch)).tasks
        await self._pace.rest()
        there = [each for each in some if each.task.key not in other]
        if other:
            there += await self._correct([each for each in some if each.task.key in other], other)
        marked = await asyncio.gather(*map(self._mark, there))
        for each, word in zip(there, marked, strict=True):
            # One that has changed since is due again.
            if word is not ReplyCode.STALE:
                report.tasks += word is ReplyCode.OK
                settled[each.claim.entry] = None

    async def _correct(
        self, some: Sequence[EndedTask], other: Mapping[tuple[str, str, int], str | None]
    ) -> list[EndedTask]:
        """Replace what the archive has instead, if Redis still has what was read.

        After a rollback of the server a task may have ended otherwise, and at a lower version.
        """
        replies = await self._look([each.claim for each in some], least_ms=_DAY_MS, whole=False)
        same = [
            each
            for each, reply in zip(some, replies, strict=True)
            if isinstance(reply, Reply)
            and reply.word is ReplyCode.OK
            and reply.text(0) == each.task.stamp
            and other[each.task.key] is not None
        ]
        if not same:
            return []
        batch = ArchiveBatch(tasks=[each.task for each in same])
        named = {each.task.key: other[each.task.key] or "" for each in same}
        await self._archive.write(batch, replaces=named)
        left = (await self._archive.verify(batch)).tasks
        for session_id, task_id, _ in left:
            # Another archiver may have written meanwhile. Else the archive changes what it gets.
            log.warning(
                "task %r of session %r is not in the archive as it was sent: it is sent again",
                task_id,
                session_id,
            )
        return [each for each in same if each.task.key not in left]

    async def _mark(self, ended: EndedTask) -> ReplyCode:
        task = ended.task
        keys = self._store.tasks.keys(task.session_id, task.task_id)
        reply = await self._store.base.scripts.mark_archived(keys, stamp=task.stamp)
        if reply.word is ReplyCode.OK:
            self._unlist_in_time(task)
        return reply.word

    def _unlist_in_time(self, task: ArchivedTask) -> None:
        """Shorten how long the index of tasks lists a task that the archive has."""
        entry = watch_entry(task.session_id, task.task_id)
        ttl_ms = self._store.tasks.ttl_ms(task.status.value)
        self._index.moved(
            indexed_move(entry, task.status, version=task.version, write=task.write, ttl_ms=ttl_ms)
        )

    async def _next_look(self, session_id: str | None, copied: CopiedUpdates) -> int | None:
        """Return when a session is looked at again; None once its log has expired."""
        if session_id is None:
            return None
        if session_id not in copied.whole:
            return _AGAIN_MS
        rows = self._store.updates.keys(session_id).rows
        there = await self._store.transport.commands.exists(rows)
        return self._delay_ms(session_id, copied) if there else None

    def _delay_ms(self, session_id: str, copied: CopiedUpdates) -> int:
        return _AGAIN_MS if copied.rows[session_id] >= self._many else self._session_ms

    async def _look_at_sessions(self, sessions: Iterable[str], *, within_ms: int) -> None:
        await asyncio.gather(
            *(self._list.look_at_session(each, within_ms=within_ms) for each in sessions)
        )

    async def _keep(
        self,
        tasks: Sequence[WatchClaim],
        sessions: Sequence[WatchClaim],
        settled: Settled,
        report: ArchiveReport,
    ) -> None:
        """Keep from expiring what could not be archived, and postpone it."""
        left = [each for each in tasks if settled.get(each.entry, 0) is not None]
        replies = await self._look(left, least_ms=ARCHIVE_HOLD_MS // 2, whole=False)
        kept = {session_of_entry(each.entry) for each in sessions}
        for claim, reply in zip(left, replies, strict=True):
            task = task_of_entry(claim.entry)
            if isinstance(reply, RedisStateError):
                settled[claim.entry] = _TROUBLE_MS
                continue
            if task is None or reply is None or reply.word is not ReplyCode.OK:
                settled[claim.entry] = None
                continue
            kept.add(task[0])
            settled[claim.entry] = backoff_ms(self._failures)
            report.postponed += 1
        await self._copies.hold(
            [each for each in kept if each is not None], least_ms=ARCHIVE_HOLD_MS // 2
        )
        for claim in sessions:
            settled[claim.entry] = backoff_ms(self._failures)
            report.postponed += 1

    async def _settle(
        self, tasks: Sequence[WatchClaim], sessions: Sequence[WatchClaim], settled: Settled
    ) -> None:
        """Settle what was decided. What was not is due again when its claim runs out."""
        for watch, claims in ((self._list.tasks, tasks), (self._list.sessions, sessions)):
            await watch.settle(
                (each, settled[each.entry]) for each in claims if each.entry in settled
            )
