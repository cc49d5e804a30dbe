"""Put records on the archive's list that Redis has: those of before, or all of them again.

    trajectories      the notes of traces name the sessions, and each session lists its traces
    agents' sessions  their listing has all of them
    artifacts         the list of places names the places, and each lists its artifacts. A reference
                      names its session

Ids come from members of sets, never from names of keys: in these a long id is a digest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from redis_state.archive.model import RecordKind
from redis_state.archive.sources import RecordReader
from redis_state.erasure.walking import KeyWalk
from redis_state.scripts import topic_text
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import RecordList, record_entry
from redis_state.stores.artifacts import session_of
from redis_state.transport.keys import AGENT_SHARDS

_PAGE, _TOGETHER = 500, 64
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
    removed first: an archive that went back to an earlier state may lack them. They are due
    `RecordList.rest_s` later. It may be repeated, also after a crash, and while a pool works.
    Errors: CommandRefused without the right to read names, if trajectories are archived: it takes
    the role ``admin``. LostRace while slots of a cluster are being moved.
    """
    done, sources = EnlistedRecords(), RecordReader(store).sources
    chosen = store.settings.archive_classes
    for kind in (each for each in RecordKind if each.what in chosen):
        find = FINDERS.get(kind)
        if find is None or kind not in sources:
            done.left.append(kind.what)
            continue
        async for page in find(store):
            for start in range(0, len(page), _TOGETHER):
                some = page[start : start + _TOGETHER]
                await asyncio.gather(*(_enlist(store, kind, each, again=again) for each in some))
            done.counts[kind.what] += len(page)
    return done


async def _enlist(store: RedisStateStore, kind: RecordKind, found: Found, *, again: bool) -> None:
    key = RecordReader(store).sources[kind].keys(*found).record

    async def unmark() -> None:
        if again:
            await store.base.scripts.hdel(key, "archived")

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


async def _artifacts(store: RedisStateStore) -> AsyncGenerator[list[Found]]:
    """Keep the references of artifacts that have none, then list all by what they say."""
    async for page in store.artifact_store.keep_references():
        yield [(session_of(ref), ref.id) for ref in page]


FINDERS: Final[Mapping[RecordKind, Finder]] = {
    RecordKind.TRAJECTORY: _trajectories,
    RecordKind.AGENT_SESSION: _agent_sessions,
    RecordKind.ARTIFACT: _artifacts,
}
