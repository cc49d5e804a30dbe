"""Where the records of each class stand in Redis, and what the archive gets of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from redis_state.archive.encoding import record_fields
from redis_state.archive.model import ArchivedRecord, RecordKind
from redis_state.scripts import ReplyCode
from redis_state.store import RedisStateStore
from redis_state.stores.base import ARCHIVE_HOLD_MS
from redis_state.stores.task_index import LATEST_US
from redis_state.transport.keys import artifact_place

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """A record's key, and its place in an index of its slot, if it has one."""

    record: str
    index: str | None = None
    member: str | None = None


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record as it is in Redis. ``stamp`` is its version and its write."""

    stamp: str
    at_us: int
    fields: Mapping[bytes, bytes]


class RecordSource(Protocol):
    """The records of one class."""

    def keys(self, owner: str, key: str) -> RecordKeys:
        """Return where a record stands."""
        ...

    def record(self, owner: str, key: str, found: FoundRecord) -> ArchivedRecord:
        """Make what is archived of a record. Errors: ValueError, KeyError."""
        ...

    async def keep(self, owner: str, key: str) -> None:
        """Keep what a record needs beside its own keys, while the record is kept."""
        ...


class TrajectorySource:
    """Trajectories: of a session, by their traces."""

    def __init__(self, store: RedisStateStore) -> None:
        self._scripts, self._keys = store.base.scripts, store.base.keys

    def keys(self, owner: str, key: str) -> RecordKeys:
        """Return where a trajectory stands."""
        return RecordKeys(self._keys.trajectory(owner, key), self._keys.traces(owner), key)

    def record(self, owner: str, key: str, found: FoundRecord) -> ArchivedRecord:
        """Return its document. Errors: ValueError, KeyError."""
        return _of_document(RecordKind.TRAJECTORY, owner, key, found)

    async def keep(self, owner: str, key: str) -> None:
        """Keep the note by which the trace knows the session. Each look does so again."""
        # Not for longer: an erasure finds the note by the trajectory.
        index = self._keys.trace_sessions(key)
        await self._scripts.add_member(index, member=owner, ttl_ms=2 * _DAY_MS)


class AgentSessionSource:
    """Agents' sessions: each owns itself."""

    def __init__(self, store: RedisStateStore) -> None:
        self._keys = store.base.keys

    def keys(self, owner: str, key: str) -> RecordKeys:
        """Return where an agent's session stands. Its listing is by name."""
        del key
        return RecordKeys(self._keys.agent_session(owner))

    def record(self, owner: str, key: str, found: FoundRecord) -> ArchivedRecord:
        """Return all its fields. Errors: ValueError, KeyError."""
        version, _, write = found.stamp.partition(" ")
        return ArchivedRecord(
            RecordKind.AGENT_SESSION,
            owner,
            key,
            born_us=_birth(found.fields[b"created"]),
            at_us=found.at_us,
            data=record_fields(found.fields).encode(),
            version=int(version),
            write=write,
        )

    async def keep(self, owner: str, key: str) -> None:
        """Keep nothing else."""


class ArtifactSource:
    """References of artifacts: of a session, by the artifacts' ids. Never the bytes."""

    def __init__(self, store: RedisStateStore) -> None:
        self._scripts, self._keys = store.base.scripts, store.base.keys

    def keys(self, owner: str, key: str) -> RecordKeys:
        """Return where a reference stands."""
        artifacts = self._keys.artifacts(artifact_place(owner))
        return RecordKeys(artifacts.reference(key), artifacts.references, key)

    def record(self, owner: str, key: str, found: FoundRecord) -> ArchivedRecord:
        """Return its document. Errors: ValueError, KeyError."""
        return _of_document(RecordKind.ARTIFACT, owner, key, found)

    async def keep(self, owner: str, key: str) -> None:
        """Keep the note by which the place of the session is found. Each look does so again."""
        del key
        index, place = self._keys.artifact_sessions(), artifact_place(owner)
        await self._scripts.add_member(index, member=place, ttl_ms=2 * _DAY_MS)


class RecordReader:
    """Read the records of a store for the archive, and keep them until they are there."""

    def __init__(self, store: RedisStateStore) -> None:
        self._scripts = store.base.scripts
        self.sources: dict[RecordKind, RecordSource] = {
            RecordKind.TRAJECTORY: TrajectorySource(store),
            RecordKind.AGENT_SESSION: AgentSessionSource(store),
            RecordKind.ARTIFACT: ArtifactSource(store),
        }

    async def read(
        self, kind: RecordKind, owner: str, key: str, *, whole: bool
    ) -> FoundRecord | None:
        """Return a record that is not archived as it is, and keep it from expiring; else None."""
        source = self.sources[kind]
        keys = source.keys(owner, key)
        reply = await self._scripts.hold_record(
            keys.record,
            index=keys.index,
            member=keys.member,
            least_ms=_DAY_MS,
            hold_ms=ARCHIVE_HOLD_MS,
            whole=whole,
        )
        if reply.word is not ReplyCode.OK:
            return None
        at_us, held, flat = reply.facts[1:]
        if held:
            await source.keep(owner, key)
        fields: dict[bytes, Any] = dict(zip(flat[::2], flat[1::2], strict=True))
        return FoundRecord(reply.text(0), int(at_us), fields)

    async def mark(self, record: ArchivedRecord) -> ReplyCode:
        """Mark a record as archived, and let it expire. STALE: it is not as it was read."""
        keys = self.sources[record.kind].keys(record.owner, record.key)
        reply = await self._scripts.mark_record(
            keys.record, index=keys.index, member=keys.member, stamp=record.stamp
        )
        return reply.word


def _of_document(kind: RecordKind, owner: str, key: str, found: FoundRecord) -> ArchivedRecord:
    """Make a record of a document. Errors: ValueError, KeyError."""
    version, _, write = found.stamp.partition(" ")
    return ArchivedRecord(
        kind,
        owner,
        key,
        born_us=_birth(found.fields[b"order"]),
        at_us=found.at_us,
        data=found.fields[b"document"],
        version=int(version),
        write=write,
    )


def _birth(stored: bytes) -> int:
    """Return a time of the server, in us. Errors: ValueError for what is none."""
    born_us = int(stored)
    if not 0 <= born_us <= LATEST_US:
        raise ValueError("no time of a server")
    return born_us
