"""Release what is held for the archive, without an archive: it expires when it would have.

    what is held     names of keys say what may be; no list has all of it. A record or a log says
                     that it is held, and is let go of in one step
    the index        lists a task for as long as its record then lives. It goes first: a repetition
                     finds by the record that it is held
    the lists        an entry goes once what it stands for is let go of

Every step may be repeated. After a crash what is held is found by its name, and entries by their
lists. What nobody holds stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from redis_state.archive.copying.pace import Pace
from redis_state.archive.copying.sources import RecordReader
from redis_state.archive.waiting import session_of_entry
from redis_state.archive.working import WorkingArchivers
from redis_state.erasure.walking import FoundKey, KeyWalk
from redis_state.errors import (
    ArchiveInUse,
    CommandRefused,
    NoConnection,
    RedisStateError,
    StoreFull,
)
from redis_state.models import TaskStatus
from redis_state.models.releasing import ReleaseReport
from redis_state.scripts import Reply, ReplyCode, topic_text
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import record_of_entry
from redis_state.stores.base import ms
from redis_state.stores.index_walk import walk_index
from redis_state.stores.kept_elsewhere import ElsewhereSigns
from redis_state.stores.sessions.task_status import task_of_entry, watch_entry
from redis_state.stores.task_index import TaskIndex, indexed_move
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.key_text import escape, is_digest, unescape
from redis_state.transport.keys import WATCH_SHARDS

_TOGETHER = 64
_PAGE = 500
# Of its time it works so long: others have the server meanwhile.
_SHARE = 0.25
# A task whose end is not so far away is listed for so long, as its record lives.
_LEAST_MS = 60_000
_ENDED = "cfx"
_STATUSES: Final = frozenset(each.value for each in TaskStatus)
# Of these no one thing is the cause: a right is missing, or the server is away or full.
_OF_ALL = (CommandRefused, NoConnection, StoreFull)
_KINDS: Final = ("task", "journal", "updates", "trajectory", "session", "events", "artifacts")
# By the kinds of a task's keys what is counted.
_WHOLE: Final = {"task": "tasks", "journal": "journals"}
# Of other records what they are, their index, and how the rest of a name begins.
_PLACED: Final = {
    "trajectory": ("trajectories", "traces", ""),
    "artifacts": ("artifacts", "artifacts:references", "reference:"),
}
Progress = Callable[[str, int], object]


async def release_held(
    store: RedisStateStore,
    *,
    dry_run: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> ReleaseReport:
    """Release all that is held for the archive: it expires when it would have without one.

    Call it after `archive_url` was taken away everywhere. It needs no archive. What has outlived
    its own lifetime expires after a minute. By default it is a dry run, which changes nothing. It
    may be repeated, also after a crash. It rests after each piece of work. ``progress`` gets a name
    and a number. Errors: ArchiveInUse if an archiver works, or if this store has an `archive_url`,
    unless ``force``; CommandRefused without the right to read names: it takes the role ``admin``;
    LostRace while slots of a cluster are being moved.
    """
    release = _Release(store, ReleaseReport(dry_run), force=force)
    await release.run(progress or _ignore)
    return release.report


class _Held(NamedTuple):
    """What may be held: a record with its place, or a log without one."""

    what: str
    record: str = ""
    listing: str | None = None
    member: str | None = None
    beside: str = ""
    log: LogKeys | None = None
    task: tuple[str, str] | None = None


class _EntryList(NamedTuple):
    """A list of the archive: its shards, since when their entries wait, and how one is read."""

    key_of: Callable[[int], str]
    since_of: Callable[[int], str] | None
    read: Callable[[bytes], _Held | None]


class _Release:
    """One walk over what is held."""

    def __init__(self, store: RedisStateStore, report: ReleaseReport, *, force: bool) -> None:
        self._store = store
        self.report = report
        self._force = force
        self._keys, self._scripts = store.base.keys, store.base.scripts
        self._index = TaskIndex(self._scripts, self._keys)
        self._sources = RecordReader(store).sources
        self._archivers = WorkingArchivers(store)
        self._alone_ms = ms(store.settings.active_task_ttl)
        self._pace = Pace(_SHARE)
        # By the names of their keys, which are digests.
        self._long: dict[str, tuple[str, str]] = {}

    async def run(self, progress: Progress) -> None:
        """Release what is held, then clear the lists."""
        await self._check()
        await self._name_long_ids()
        walked = 0
        async for page in KeyWalk(self._store).all(_KINDS):
            found = [held for key in page if (held := await self._of_key(key)) is not None]
            await self._release(found)
            walked += len(page)
            progress("keys", walked)
        for listed in self._lists():
            for shard in range(WATCH_SHARDS):
                await self._clear(listed, shard)
            progress("entries", self.report.unlisted)
        if not self.report.dry_run:
            # A new archive is none that has to be accepted.
            await self._scripts.delete_record(
                self._keys.archive_known(), index=None, member=None, only_if_gone=False
            )
            # Last: until then an erasure knows that there was an archive.
            await ElsewhereSigns(self._store.base).withdraw("archive")

    async def _check(self) -> None:
        """Learn what is in use. Errors: ArchiveInUse."""
        reasons = [f"{name} archives" for name in await self._archivers.names()]
        if self._store.settings.has_archive:
            name = "archive_store" if self._store.settings.archive_url is None else "archive_url"
            reasons.insert(0, f"{name} is set here")
        self.report.in_use = reasons
        if reasons and not (self._force or self.report.dry_run):
            raise ArchiveInUse(reasons)

    async def _name_long_ids(self) -> None:
        """Find the tasks that have long ids: the names of their keys do not say them."""
        for shard in range(WATCH_SHARDS):
            pages = walk_index(self._scripts, self._keys.task_index(shard), statuses=_ENDED)
            async for page in pages:
                for each in page:
                    task = each.session_id, each.task_id
                    if any(is_digest(escape("id", part)) for part in task):
                        self._long[self._store.tasks.keys(*task).task] = task
                await self._pace.rest()

    async def _of_key(self, key: FoundKey) -> _Held | None:
        slot, kind, rest = key.name[: key.name.rindex("}") + 2], key.kind, key.rest
        if kind in _WHOLE and rest:
            return await self._task(_WHOLE[kind], slot, key.tag, rest)
        if kind in ("updates", "events") and rest == "ids":
            rows = key.name.removesuffix(":ids")
            return _Held(kind, log=LogKeys(rows, key.name, f"{rows}:live"))
        if kind == "session" and key.tag.startswith("/agents-"):
            return _Held("agent_sessions", key.name)
        what, index, begins = _PLACED.get(kind, ("", "", ""))
        if not what or not rest.startswith(begins):
            return None
        index = f"{slot}{index}"
        member = await self._member(index, rest.removeprefix(begins))
        return _Held(what, key.name, index, member)

    async def _task(self, what: str, slot: str, tag: str, rest: str) -> _Held:
        """Return a task by its slot, and by what follows in the names of its keys.

        It is looked at by its record, and by its journal: that may be left alone.
        """
        record = f"{slot}task:{rest}"
        task = self._long.get(record)
        if task is None and not (is_digest(tag) or is_digest(rest)):
            task = unescape(tag), unescape(rest)
        member = task[1] if task is not None else await self._member(f"{slot}tasks", rest)
        journal = f"{slot}journal:{rest}"
        return _Held(what, record, f"{slot}tasks", member, beside=journal, task=task)

    async def _member(self, index: str, rest: str) -> str | None:
        """Return what a part of a key's name stands for in an index; None if it is not there."""
        if not is_digest(rest):
            return unescape(rest)
        members: list[bytes] = await self._store.transport.commands.zrange(index, 0, -1)
        named = (topic_text(member) or "" for member in members)
        return next((each for each in named if escape("id", each) == rest), None)

    async def _release(self, found: Sequence[_Held]) -> None:
        for start in range(0, len(found), _TOGETHER):
            if not self.report.dry_run:
                await self._check()
            self._pace.begin()
            await asyncio.gather(*map(self._release_one, found[start : start + _TOGETHER]))
            await self._pace.rest()

    async def _release_one(self, held: _Held) -> bool:
        """Release one thing, if it is held; return whether that could be found out."""
        looks = self.report.dry_run
        try:
            if held.task is not None and not looks:
                await self._unlist_in_time(held, held.task)
            reply = await self._reply(held, looks=looks)
        except _OF_ALL:
            raise
        except RedisStateError:
            # It is damaged: nothing is known of it.
            self.report.failed += 1
            return False
        by_journal = held.what == "journals"
        # Who only looks finds a task by both of its keys.
        if reply.word is ReplyCode.STALE and (by_journal or not looks):
            self.report.count("journals", left_ms=self._alone_ms)
        if reply.word is ReplyCode.OK and not (by_journal and looks):
            left_ms = int(reply.facts[0])
            self.report.count("tasks" if by_journal else held.what, left_ms=left_ms)
        return True

    async def _reply(self, held: _Held, *, looks: bool) -> Reply:
        if held.log is not None:
            return await self._scripts.release_log(held.log, looks=looks)
        return await self._scripts.release_record(
            held.record,
            index=held.listing if held.member is not None else None,
            member=held.member,
            beside=held.beside or held.record,
            alone_ms=self._alone_ms,
            looks=looks,
        )

    async def _unlist_in_time(self, held: _Held, task: tuple[str, str]) -> None:
        """Write in the index for how long the record of a task lives once it is released."""
        found = await self._reply(held, looks=True)
        if found.word is not ReplyCode.OK:
            return
        left_ms = int(found.facts[0])
        status, version, write = found.text(1).split(" ", 2)
        if status not in _STATUSES or not version.isdecimal():
            return
        moved = indexed_move(
            entry := watch_entry(*task),
            TaskStatus(status),
            version=int(version),
            write=write,
            ttl_ms=max(left_ms, _LEAST_MS),
        )
        await self._scripts.index_task(self._index.keys(entry), moved, rule="move")

    def _lists(self) -> tuple[_EntryList, ...]:
        keys = self._keys
        return (
            _EntryList(keys.archive_watch, keys.archive_since, self._of_task_entry),
            _EntryList(keys.archive_sessions, keys.archive_sessions_since, self._of_session_entry),
            _EntryList(keys.archive_records, keys.archive_records_since, self._of_record_entry),
        )

    async def _clear(self, listed: _EntryList, shard: int) -> None:
        """Take entries off a list. What they stand for is let go of before."""
        commands, key = self._store.transport.commands, listed.key_of(shard)
        if self.report.dry_run:
            self.report.unlisted += await commands.zcard(key)
            return
        async for entries in commands.zscan_all(key, count=_PAGE):
            for start in range(0, len(entries), _TOGETHER):
                await self._unlist(listed, shard, entries[start : start + _TOGETHER])

    async def _unlist(self, listed: _EntryList, shard: int, entries: Sequence[bytes]) -> None:
        await self._check()
        self._pace.begin()
        named = [(entry, held) for entry in entries if (held := listed.read(entry)) is not None]
        known = await asyncio.gather(*(self._release_one(held) for _, held in named))
        gone = [entry for (entry, _), is_known in zip(named, known, strict=True) if is_known]
        if gone:
            if listed.since_of is not None:
                await self._scripts.zrem(listed.since_of(shard), *gone)
            await self._scripts.zrem(listed.key_of(shard), *gone)
            self.report.unlisted += len(gone)
        await self._pace.rest()

    def _of_task_entry(self, entry: bytes) -> _Held | None:
        task = task_of_entry(entry)
        if task is None:
            return None
        keys = self._store.tasks.keys(*task)
        return _Held("tasks", keys.task, keys.tasks, task[1], beside=keys.journal, task=task)

    def _of_session_entry(self, entry: bytes) -> _Held | None:
        session_id = session_of_entry(entry)
        if session_id is None:
            return None
        return _Held("updates", log=self._store.updates.keys(session_id))

    def _of_record_entry(self, entry: bytes) -> _Held | None:
        """Return what an entry stands for; None if a newer version has put it."""
        match record_of_entry(entry):
            case ("event", str(trace_id), ""):
                return _Held("events", log=self._keys.events(trace_id))
            case (str(kind), str(owner), str(key)):
                known = next((each for each in self._sources if each.value == kind), None)
            case _:
                return None
        if known is None:
            return None
        keys = self._sources[known].keys(owner, key)
        return _Held(known.what, keys.record, keys.index, keys.member)


def _ignore(what: str, number: int) -> None:
    del what, number
