"""Put on the archive's lists what Redis has: what was there before, or all of it again.

    tasks of hosts    each session lists its tasks. Those of workers are found by their index
    updates           the name of each log says of which session it is
    trajectories      the notes of traces name the sessions, and each session lists its traces
    agents' sessions  their listing has all of them
    events            the first row of each log says whose it is
    artifacts         the list of places names the places, and each lists its artifacts. A reference
                      names its session

Ids come from members of sets and from rows, never from names of keys that have a digest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from redis_state.archive.copying.sources import RecordReader
from redis_state.archive.model import RecordKind
from redis_state.archive.waiting import ArchiveList
from redis_state.erasure.walking import FoundKey, KeyWalk
from redis_state.errors import CorruptState
from redis_state.scripts import topic_text
from redis_state.serialization.rows import unpack
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import RecordList, record_entry
from redis_state.stores.artifact_ids import session_of
from redis_state.stores.traces.audit_events import GLOBAL_TRACE
from redis_state.transport.key_text import is_digest, unescape
from redis_state.transport.keys import AGENT_SHARDS

_PAGE, _TOGETHER = 500, 64
# Of an event's row: its trace comes first.
_PARTS = 6
# Under it an agent's session is listed whatever its status and its agent: see `SessionStore`.
_ALL_SESSIONS = b"/:"

# Owner and key.
Found: TypeAlias = tuple[str, str]
Finder: TypeAlias = Callable[[RedisStateStore], AsyncGenerator[list[Found]]]


@dataclass(slots=True)
class EnlistedRecords:
    """How many records of each class were put on the list. ``left`` are classes that none finds."""

    counts: Counter[str] = field(default_factory=Counter[str])
    left: list[str] = field(default_factory=list[str])


async def enlist_records(store: RedisStateStore, *, again: bool = False) -> EnlistedRecords:
    """Put all records of `archive_classes` on the archive's list that Redis has.

    Those that are archived are taken off it when they are looked at. With ``again`` their marks are
    removed first: an archive that went back to an earlier state may lack them. Of a log of events
    what follows the archive's last row is copied. They are due `RecordList.rest_s` later. It may be
    repeated, also after a crash, and while a pool works. Errors: CommandRefused without the right
    to read names, if trajectories or events are archived: it takes the role ``admin``. LostRace
    while slots of a cluster are being moved.
    """
    done, sources = EnlistedRecords(), RecordReader(store).sources
    chosen = store.settings.archive_classes
    for kind in (each for each in RecordKind if each.what in chosen):
        find = FINDERS.get(kind)
        if again and kind is RecordKind.ARTIFACT:
            find = partial(_artifacts, again=True)
        if find is None or (kind not in sources and kind is not RecordKind.EVENT):
            done.left.append(kind.what)
            continue
        async for page in find(store):
            for start in range(0, len(page), _TOGETHER):
                some = page[start : start + _TOGETHER]
                await asyncio.gather(*(_enlist(store, kind, each, again=again) for each in some))
            done.counts[kind.what] += len(page)
    return done


async def enlist_saved_tasks(store: RedisStateStore, *, again: bool = False) -> int:
    """Put all ended tasks of hosts on the archive's list that Redis has; return their number.

    With ``again`` their marks are removed first. A session whose id is so long that its keys have a
    digest of it is left out: no key says it. It may be repeated. Errors: those of `enlist_records`.
    """
    found = 0
    async for page in KeyWalk(store).all(["tasks"]):
        for key in page:
            if key.kind != "tasks" or key.rest or is_digest(key.tag):
                continue
            session_id = unescape(key.tag)
            tasks = await store.tasks.ids(session_id)
            for start in range(0, len(tasks), _TOGETHER):
                some = tasks[start : start + _TOGETHER]
                each_listed = (_enlist_task(store, session_id, one, again=again) for one in some)
                found += sum(await asyncio.gather(*each_listed))
    return found


async def enlist_sessions(store: RedisStateStore) -> int:
    """Put all sessions that have updates on the archive's list; return their number.

    What follows the archive's last row of each is copied. Otherwise as `enlist_saved_tasks`.
    """
    waiting, found = ArchiveList(store), 0
    async for page in KeyWalk(store).all(["updates"]):
        named = [
            unescape(key.tag)
            for key in page
            if key.kind == "updates" and not key.rest and not is_digest(key.tag)
        ]
        for start in range(0, len(named), _TOGETHER):
            some = named[start : start + _TOGETHER]
            await asyncio.gather(*(waiting.watch_session(each, within_ms=0) for each in some))
        found += len(named)
    return found


async def _enlist_task(
    store: RedisStateStore, session_id: str, task_id: str, *, again: bool
) -> bool:
    try:
        view = await store.tasks.look(session_id, task_id)
    except CorruptState:
        # An archiver could not read it either.
        return False
    if view is None or view.ours or not view.status.is_terminal:
        return False
    if again:
        await store.base.scripts.hdel(store.tasks.keys(session_id, task_id).task, "archived")
    await ArchiveList(store).enlist(session_id, task_id)
    return True


async def _enlist(store: RedisStateStore, kind: RecordKind, found: Found, *, again: bool) -> None:
    source = RecordReader(store).sources.get(kind)

    async def unmark() -> None:
        # A log has no mark: the archive's last row says what follows.
        if again and source is not None:
            await store.base.scripts.hdel(source.keys(*found).record, "archived")

    # Like a save: who has looked before the mark was removed does not remove the entry.
    await RecordList(store.base).covering(record_entry(kind.value, *found), unmark)


async def _trajectories(store: RedisStateStore) -> AsyncGenerator[list[Found]]:
    commands, keys = store.transport.commands, store.base.keys
    seen: set[str] = set()
    async for page in KeyWalk(store).all(["trace-sessions"]):
        for note in page:
            members: list[bytes] = await commands.zrange(note.name, 0, -1)
            for session_id in {topic_text(member) or "" for member in members} - seen:
                seen.add(session_id)
                traces: list[bytes] = await commands.zrange(keys.traces(session_id), 0, -1)
                yield [(session_id, topic_text(trace) or "") for trace in traces]


async def _agent_sessions(store: RedisStateStore) -> AsyncGenerator[list[Found]]:
    commands = store.transport.commands
    for shard in range(AGENT_SHARDS):
        index, after = store.base.keys.agent_sessions(shard), b"[" + _ALL_SESSIONS
        while True:
            found: list[Any] = await commands.zrange_by_lex(index, after, b"(/;", count=_PAGE)
            # What is behind the second colon is the id, whatever is in it.
            named = (member.removeprefix(_ALL_SESSIONS).partition(b":")[2] for member in found)
            yield [(each.decode("utf-8", "surrogatepass"), "") for each in named]
            if len(found) < _PAGE:
                break
            after = b"(" + found[-1]


async def _events(store: RedisStateStore) -> AsyncGenerator[list[Found]]:
    async for page in KeyWalk(store).all(["events"]):
        logs = [key for key in page if key.kind == "events" and not key.rest]
        for start in range(0, len(logs), _TOGETHER):
            some = logs[start : start + _TOGETHER]
            traces = await asyncio.gather(*(_trace_of(store, log) for log in some))
            yield [(trace, "") for trace in traces if trace is not None]


async def _trace_of(store: RedisStateStore, log: FoundKey) -> str | None:
    """Return whose events a log has; None if it has none, or if neither row nor name says it."""
    named = None if is_digest(log.tag) else unescape(log.tag)
    reading = store.transport.commands.xrange(log.name, "-", "+", count=1)
    try:
        found: Any = await store.base.scripts.read(reading, log.name, command="XRANGE")
    except CorruptState:
        # What cannot be read is named by the archiver.
        return named
    if not found or named is not None:
        return named if found else None
    fields = dict(zip(found[0][1][::2], found[0][1][1::2], strict=False))
    try:
        trace = unpack(fields.get(b"row", b""), _PARTS)[0]
    except ValueError:
        return None
    return trace if isinstance(trace, str) else GLOBAL_TRACE


async def _artifacts(store: RedisStateStore, *, again: bool = False) -> AsyncGenerator[list[Found]]:
    """Keep the references of artifacts that have none, then list all by what they say.

    ``again`` keeps also those that have expired before the bytes.
    """
    async for page in store.artifact_store.keep_references(again=again):
        yield [(session_of(ref), ref.id) for ref in page]


FINDERS: Final[Mapping[RecordKind, Finder]] = {
    RecordKind.TRAJECTORY: _trajectories,
    RecordKind.AGENT_SESSION: _agent_sessions,
    RecordKind.EVENT: _events,
    RecordKind.ARTIFACT: _artifacts,
}
