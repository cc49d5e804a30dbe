"""What an archive holds: tasks, rows of sessions, records of all other classes. No I/O.

Everything is kept as it is stored, byte for byte. So what is encrypted stays encrypted, and a
reader makes the same models of it. One thing is left out: a task's secret, from which the tokens of
its pauses are derived. A reader of the archive must not be able to decide a pause.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Self, TypeAlias

from redis_state.archive.encoding import (
    OWN_FIELDS,
    as_text,
    fields_of,
    json_of,
    listed_moment,
    moment_of_us,
    task_place,
)
from redis_state.models import TaskStatus
from redis_state.models.version import Version
from redis_state.postgres.text import plain_text
from redis_state.primitives.record import Stored
from redis_state.serialization.rows import as_object
from redis_state.stores.sessions.job_parts import with_whole_job
from redis_state.stores.sessions.task_fields import read_updated


class RecordKind(StrEnum):
    """A class of data that is neither a task nor an update. Its value is stored.

    What ``owner``, ``key`` and ``data`` of a record are:

        event          trace; the event's fingerprint; its row
        trajectory     session; trace; its document
        agent_session  session; nothing; all fields of its hash, as `json_of` writes them
        artifact       session; the artifact's id; its reference, without the artifact's bytes
    """

    EVENT = "event"
    TRAJECTORY = "trajectory"
    AGENT_SESSION = "agent_session"
    ARTIFACT = "artifact"

    @property
    def what(self) -> str:
        """The class, as settings, retention, reports and metrics name it."""
        return "trajectories" if self is RecordKind.TRAJECTORY else f"{self.value}s"


# Kind, owner, birth, number, key: by which a record is known.
RecordKey: TypeAlias = tuple[RecordKind, str, int, int, str]
# Birth, number, key: where a record stands among those of its kind and owner.
RecordPlace: TypeAlias = tuple[int, int, str]
# End, session, task, birth: where a task stands among those that ended, the last first.
TaskEnd: TypeAlias = tuple[datetime, str, str, int]


@dataclass(frozen=True, slots=True)
class ArchivedRecord:
    """One row of a log, or one record at a version. It is known by `RecordKey`, never by a version.

    ``born_us`` is the server's time of its first save: a later record of its key is another one.
    ``n`` is the row's number in its log, 0 for what is no row. ``version`` and ``write`` say which
    state of a record ``data`` is: 0 and empty for a row, which never changes. ``at_us`` is the
    server's time of that state, as the archiver read it: retention may use it; it is no part of
    what is compared. ``replaces`` names the stamp of the state that it replaces although its
    version is not later: after a rollback of the server.
    """

    kind: RecordKind
    owner: str
    key: str
    born_us: int
    at_us: int
    data: bytes = field(repr=False)
    n: int = 0
    version: int = 0
    write: str = ""
    replaces: str | None = field(default=None, compare=False)

    @property
    def known_by(self) -> RecordKey:
        """Return by what an archive knows it: one record for each."""
        return self.kind, self.owner, self.born_us, self.n, self.key

    @property
    def place(self) -> RecordPlace:
        """Return its place among the records of its kind and owner: they are read in this order."""
        return self.born_us, self.n, self.key

    @property
    def stamp(self) -> str:
        """Return which state it is."""
        return f"{self.version} {self.write}"

    def digest(self) -> str:
        """Return the digest of its data."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class ArchivedTask:
    """A terminal task. ``born_us`` distinguishes it from a later task of its id.

    ``version`` and ``write`` say which end it is: a task that was retried ends more than once.
    ``record`` and ``journal`` are the fields as they were stored. ``replaces`` is as a record's.
    A task that a host saved has no ``handler``: it is empty. Its record has its times as the host
    gave them; these are within what can be listed.
    """

    session_id: str
    task_id: str
    born_us: int
    version: int
    write: str
    status: TaskStatus
    handler: str
    queue: str | None
    trace_id: str | None
    parent: str | None
    created_at: datetime
    ended_at: datetime
    attributes: Mapping[str, Any]
    record: Mapping[bytes, bytes] = field(repr=False)
    journal: Mapping[bytes, bytes] = field(repr=False)
    replaces: str | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls, session_id: str, task_id: str, record: Sequence[bytes], journal: Sequence[bytes]
    ) -> Self:
        """Make one of names and values in turn.

        Errors: ValueError, KeyError, TypeError; OverflowError for a time that is none.
        """
        fields = with_whole_job(dict(zip(record[::2], record[1::2], strict=True)))
        for own in OWN_FIELDS:
            fields.pop(own, None)
        if b"job" in fields:
            job = as_object(fields[b"job"])
            fields[b"job"] = _without_secret(fields[b"job"], job.get("secret"))
        return cls._read(
            session_id,
            task_id,
            fields,
            dict(zip(journal[::2], journal[1::2], strict=True)),
        )

    @classmethod
    def stored(cls, session_id: str, task_id: str, record: str, journal: str) -> Self:
        """Make one of what an archive has. Errors: those of `of`."""
        return cls._read(session_id, task_id, fields_of(record), fields_of(journal))

    @classmethod
    def _read(
        cls,
        session_id: str,
        task_id: str,
        fields: Mapping[bytes, bytes],
        journal: Mapping[bytes, bytes],
    ) -> Self:
        def text(name: bytes) -> str | None:
            return fields.get(name, b"").decode("utf-8", "surrogatepass") or None

        named = {name.decode("utf-8", "replace"): value for name, value in fields.items()}
        document = as_object(fields[b"document"])
        # A host may give what is no text. It names no trace.
        trace_id = document.get("trace_id")
        born_us = int(fields[b"order"])
        moment_of_us(born_us)
        return cls(
            session_id,
            task_id,
            born_us=born_us,
            version=int(fields[b"version"]),
            write=text(b"write") or "",
            status=TaskStatus(fields[b"status"].decode()),
            handler=str(as_object(fields[b"job"])["handler"]) if b"job" in fields else "",
            queue=text(b"queue"),
            trace_id=trace_id if isinstance(trace_id, str) else None,
            parent=text(b"parent"),
            created_at=listed_moment(datetime.fromisoformat(document["created_at"])),
            ended_at=listed_moment(read_updated(named)),
            attributes=as_object(fields.get(b"attributes") or b"{}"),
            record=fields,
            journal=journal,
        )

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what it is known by: session, task and birth."""
        return self.session_id, self.task_id, self.born_us

    @property
    def place(self) -> bytes:
        """Return its place in the order of creation."""
        return task_place(self.session_id, self.task_id, self.created_at)

    @property
    def end_place(self) -> bytes:
        """Return its place in the order of the ends."""
        return task_place(self.session_id, self.task_id, self.ended_at)

    @property
    def end(self) -> TaskEnd:
        """Return its place in the order of ends, as `ArchiveQuery.after` takes it."""
        return self.ended_at, self.session_id, self.task_id, self.born_us

    @property
    def stamp(self) -> str:
        """Return which end of the task it is, as the record says it."""
        return f"{self.version} {self.write}"

    @property
    def as_stored(self) -> Stored:
        """Return it as the record that a store reads."""
        fields = {name.decode(): value for name, value in self.record.items()}
        return Stored(Version(self.version, self.write), self.born_us, fields)

    def digest(self) -> str:
        """Return the digest of its record and its journal."""
        made = hashlib.sha256(json_of(self.record).encode())
        made.update(b"\n" + json_of(self.journal).encode())
        return made.hexdigest()


@dataclass(frozen=True, slots=True)
class ArchivedRow:
    """A row of a session's updates: its number, the server's time, and its bytes."""

    n: int
    ms: int
    id: bytes
    topic: str | None
    data: bytes = field(repr=False)

    @property
    def place(self) -> tuple[int, int]:
        """Return its place in the order of all rows that a session ever had."""
        return self.ms, self.n


@dataclass(frozen=True, slots=True)
class SessionRows:
    """Rows of one session that follow ``after``, the last row that the archive has of it.

    ``lost_behind`` is there if the server has lost rows that the archive has: the number and time
    of the last one that both have.
    """

    session_id: str
    after: tuple[int, int] | None
    rows: Sequence[ArchivedRow]
    lost_behind: tuple[int, int] | None = None

    @property
    def last(self) -> tuple[int, int] | None:
        """Return the last row that the archive has once these are written: the latest by its time.

        Those of a log that began again on a server whose clock had gone back come before others.
        """
        last = self.after if self.lost_behind is None else self.lost_behind
        if self.rows and (last is None or self.rows[-1].place > (last[1], last[0])):
            last = self.rows[-1].n, self.rows[-1].ms
        return last


@dataclass(frozen=True, slots=True)
class ArchiveBatch:
    """What is written to an archive in one step, and then verified."""

    tasks: Sequence[ArchivedTask] = ()
    sessions: Sequence[SessionRows] = ()
    records: Sequence[ArchivedRecord] = ()

    @property
    def rows(self) -> int:
        """Count the rows."""
        return sum(len(each.rows) for each in self.sessions)


@dataclass(frozen=True, slots=True)
class ArchiveVerdict:
    """What an archive was found not to have as it is. Empty: all of a batch is there.

    ``tasks`` are keys, each with the stamp that the archive has instead, None without any;
    ``records`` likewise.
    """

    tasks: Mapping[tuple[str, str, int], str | None]
    sessions: frozenset[str]
    records: Mapping[RecordKey, str | None] = field(default_factory=dict[RecordKey, str | None])

    @property
    def is_whole(self) -> bool:
        """Whether all is there, as it was sent."""
        return not self.tasks and not self.sessions and not self.records


@dataclass(frozen=True, slots=True)
class ArchivedSession:
    """What an archive has of a session. ``last`` is the number and time of its last row.

    ``records`` counts by kind those that the session owns.
    """

    session_id: str
    tasks: int
    updates: int
    last: tuple[int, int] | None
    records: Mapping[RecordKind, int] = field(default_factory=dict[RecordKind, int])


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """What an archive holds of a namespace. ``records`` counts by kind those that there are.

    ``missing`` names data files that are gone, whose content is not counted.
    """

    sessions: int
    tasks: int
    updates: int
    bytes: int
    oldest: datetime | None
    newest: datetime | None
    records: Mapping[RecordKind, int] = field(default_factory=dict[RecordKind, int])
    missing: Sequence[str] = ()


def rows_digest(rows: Iterable[ArchivedRow]) -> str:
    """Return the digest of rows of one session, in their order."""
    made = hashlib.sha256()
    for row in sorted(rows, key=lambda row: row.place):
        head = f"{plain_text(row_id(row))}\n{plain_text(row.topic or '')}\n".encode()
        made.update(hashlib.sha256(head + row.data).digest())
    return made.hexdigest()


def row_id(row: ArchivedRow) -> str:
    """Return a row's id as text; bytes that are no text are surrogates in it."""
    return as_text(row.id)


def _without_secret(job: bytes, secret: Any) -> bytes:
    """Take a task's secret out of its job. It is random, so nothing else there equals it."""
    if not isinstance(secret, str) or not secret:
        return job
    return job.replace(b'"' + secret.encode() + b'"', b'""')


def counts_of(counts: Mapping[str, int]) -> dict[RecordKind, int]:
    """Return counts of records by kind. A kind that a newer version has is left out."""
    return {kind: counts[kind.value] for kind in RecordKind if counts.get(kind.value)}
