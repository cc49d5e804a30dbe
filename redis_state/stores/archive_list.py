"""What is saved and to be archived: watch lists, in shards.

An entry stands for one record, for one log, or for one task of a host, and is written before it. It
is due once the save has succeeded or failed. A later save puts the entry again, so an archiver that
looks meanwhile does not remove it.
"""

from __future__ import annotations

import asyncio
import zlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TypeVar

from redis_state.errors import ConfigError
from redis_state.primitives.watchlist.waiting_since import WaitingSince
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import topic_text
from redis_state.serialization import codec
from redis_state.settings import ArchiveClass, Settings
from redis_state.stores.base import Base, ms
from redis_state.transport.keys import WATCH_SHARDS

T = TypeVar("T")

# More than the deadline of the save's call.
_MARGIN_MS = 5_000
# For so long a task may be on its list. Since when it is, is written as the end of that.
LISTED_MS = 34_560_000_000
_LEAST_CHECK_MS, _LONGEST_CHECK_MS = 1_000, 3_600_000


@dataclass(frozen=True, slots=True)
class RecordBacklog:
    """How many records wait to be archived, and for how long the first of them, in seconds."""

    records: int
    oldest_s: float


class CoveringList(ABC):
    """A list whose entries are put before what they stand for is saved."""

    def __init__(
        self, base: Base, *, key_of: Callable[[int], str], since_of: Callable[[int], str]
    ) -> None:
        self._scripts, self._key_of = base.scripts, key_of
        self._since = WaitingSince(base.scripts, since_of)
        self._since_of = since_of
        self._delay_ms = round(base.settings.call_timeout_s * 1000) + _MARGIN_MS
        self.watch: WatchList = WatchList(base.scripts, base.keys, key_of=key_of, since_of=since_of)

    @property
    def rest_s(self) -> float:
        """How long after its last save a record is due, in seconds."""
        return self._delay_ms / 1000

    async def covering(self, entry: bytes, save: Callable[[], Awaitable[T]]) -> T:
        """Put an entry, then save its record; return what that returned. See `WatchList`.

        If that took so long that the entry may have been removed before, it is put again.
        """
        return await self.watch.covering(
            entry,
            lambda _: save(),
            delay_ms=self._delay_ms,
            put=partial(self._put, entry),
            late=True,
        )

    @abstractmethod
    async def _put(self, entry: bytes) -> int:
        """Put an entry, with since when it waits; return when it is due, in ms."""


class RecordList(CoveringList):
    """The records of all classes that are to be archived."""

    def __init__(self, base: Base) -> None:
        keys = base.keys
        super().__init__(base, key_of=keys.archive_records, since_of=keys.archive_records_since)

    async def backlog(self) -> RecordBacklog:
        """Count what waits. Two reads for each shard."""
        return RecordBacklog(*await self._since.backlog(self._since_of))

    async def _put(self, entry: bytes) -> int:
        reply = await self._scripts.watch_since(
            self._key_of(zlib.crc32(entry) % WATCH_SHARDS),
            since=self._since.key(entry),
            entry=entry,
            delay_ms=self._delay_ms,
            stands="given",
        )
        return int(reply.facts[0])


class SavedTaskList(CoveringList):
    """The tasks that hosts save, on the archive's list of tasks."""

    def __init__(self, base: Base) -> None:
        keys = base.keys
        super().__init__(base, key_of=keys.archive_watch, since_of=keys.archive_since)

    async def _put(self, entry: bytes) -> int:
        async def note() -> None:
            await self._scripts.add_member(
                self._since.key(entry), member=topic_text(entry) or "", ttl_ms=LISTED_MS
            )

        # The entry first: what is recorded beside goes with it, and would stay without one.
        put = self.watch.put(entry, delay_ms=self._delay_ms, sooner=True)
        due_ms, _ = await asyncio.gather(put, note())
        return due_ms


def record_list(base: Base, what: ArchiveClass) -> RecordList | None:
    """Return the list that a class's records are put on; None if the class is not archived.

    Errors: ConfigError for classes without an archive.
    """
    settings = base.settings
    if not settings.archive_classes:
        return None
    if not settings.has_archive:
        raise ConfigError("archive_classes: needs archive_url or archive_store")
    return RecordList(base) if what in settings.archive_classes else None


def session_check_ms(settings: Settings) -> int:
    """Return how often a session is looked at: long before its updates would expire."""
    return min(max(ms(settings.updates_ttl) // 8, _LEAST_CHECK_MS), _LONGEST_CHECK_MS)


def many_updates(settings: Settings) -> float:
    """Return from how many new updates on a session is looked at soon: the oldest may be lost."""
    most = settings.max_updates_per_session
    return max(most // 4, 1) if most else inf


def session_entry(session_id: str) -> bytes:
    """Return a session's entry for its watch list."""
    return codec.encode(["session", session_id])


def agent_session_entry(session_id: str) -> bytes:
    """Return the entry of an agent's session."""
    return record_entry("agent_session", session_id, "")


def event_entry(trace_id: str) -> bytes:
    """Return the entry of a trace's audit events."""
    return record_entry("event", trace_id, "")


def artifact_entry(session_id: str, artifact_id: str) -> bytes:
    """Return the entry of an artifact's reference."""
    return record_entry("artifact", session_id, artifact_id)


def record_entry(kind: str, owner: str, key: str) -> bytes:
    """Return a record's entry for its watch list."""
    return codec.encode([kind, owner, key])


def record_of_entry(entry: bytes) -> tuple[str, str, str] | None:
    """Return kind, owner and key of an entry; None if it is none."""
    try:
        match codec.decode(entry):
            case [str(kind), str(owner), str(key)]:
                return kind, owner, key
            case _:
                return None
    except codec.DecodeError:
        return None
