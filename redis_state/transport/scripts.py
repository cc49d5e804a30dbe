"""The scripts as typed functions. Call sites never see the order of KEYS and ARGV.

Each function has the name of its Lua file, whose header is the contract. Every script is safe to
repeat: it knows rows by their id and writes by the id of their call, so a call whose reply was
lost is simply sent again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from redis_state.errors import CommandRefused, CorruptState
from redis_state.transport.connect import Transport
from redis_state.transport.keys import A2ABooks, A2AKeys, BlobKeys, JobKeys, LogKeys, TaskStateKeys
from redis_state.transport.lua import Script, load_script, script_names
from redis_state.transport.sender import Argument

# Every script is read at import, so that a package built without them fails at once.
SCRIPTS: dict[str, Script] = {name: load_script(name) for name in script_names()}

# The topic of a row whose topic is the empty text: no UTF-8 text encodes to this byte.
_EMPTY_TOPIC = b"\xff"


# How many entries of a journal one command of a script names: Lua's stack has its limits.
_SLICE = 1000

# What hosts save and then cancel the saver of: once made, the call is sent all the same. Others are
# not: a token must not be consumed for somebody who has gone.
_LASTING = frozenset(
    {
        "append_log",
        "save_record",
        "save_session",
        "save_snapshot",
        "save_task",
        "open_token",
        "note_step",
        "save_oauth_token",
        "save_job",
        "end_job",
        "create_a2a_task",
        "update_a2a_task",
        "register_task_state",
        "record_task_event",
        "write_a2a_version",
    }
)


class Word(StrEnum):
    """The word that leads every reply."""

    OK = "OK"
    STALE = "STALE"
    LOST = "LOST"
    TAKEN = "TAKEN"
    EXPIRED = "EXPIRED"
    MISSING = "MISSING"
    DENIED = "DENIED"
    HELD = "HELD"
    AGAIN = "AGAIN"
    GAP = "GAP"


_WORDS = {word.value.encode(): word for word in Word}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a script answered: its word, then its facts as the header lists them."""

    word: Word
    facts: list[Any]

    def text(self, place: int) -> str:
        """Read one fact as text."""
        fact = self.facts[place]
        return fact.decode("utf-8", "surrogatepass") if isinstance(fact, bytes) else str(fact)


@dataclass(frozen=True, slots=True)
class Fence:
    """The lease under which a worker writes: a later epoch refuses the write."""

    lease: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """An update that tells of a task's move, written in the same step."""

    log: LogKeys
    max_rows: int
    ttl_ms: int
    rows: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """The keys that the scripts of a task's life share; all in its session's slot."""

    task_id: str
    task: str
    tasks: str
    lease: str
    journal: str


@dataclass(frozen=True, slots=True)
class SnapshotKeys:
    """The keys of a task's snapshots; all in the task's slot."""

    rows: str
    index: str
    removal: str


@dataclass(frozen=True, slots=True)
class A2AVersionKeys:
    """The keys that the scripts of an A2A task share; all in its owner's slot."""

    task_id: str
    task: str
    books: A2ABooks
    events: LogKeys
    lease: str

    @property
    def all(self) -> tuple[str, ...]:
        """The keys in the order of the scripts."""
        books, events = self.books, self.events
        index = (books.index, books.places, books.expiry)
        return (self.task, *index, events.rows, events.ids, events.channel, self.lease)


@dataclass(frozen=True, slots=True)
class PatchKeys:
    """The keys of one patch of a session's context; all in its session's slot."""

    patch_id: str
    task_id: str
    context: str
    patch: str
    patches: str

    def with_log(self, log: LogKeys) -> tuple[str, ...]:
        """List them with those of the updates that tell of it."""
        told = (log.rows, log.ids, log.topic(self.task_id), log.channel)
        return (self.context, self.patch, self.patches, *told)


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of one group of tasks; all in its session's slot."""

    group_id: str
    group: str
    groups: str
    names: str

    @property
    def all(self) -> tuple[str, ...]:
        """List them."""
        return self.group, self.groups, self.names


def raw(text: str) -> bytes:
    """Write any text as bytes; lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def topic_bytes(topic: str | None) -> bytes:
    """Write a topic as its rows carry it. None is no topic; empty text is one."""
    if topic is None:
        return b""
    return raw(topic) or _EMPTY_TOPIC


def topic_text(topic: bytes) -> str | None:
    """Read a topic as `topic_bytes` wrote it."""
    if topic == b"":
        return None
    return "" if topic == _EMPTY_TOPIC else topic.decode("utf-8", "surrogatepass")


def _flat(fields: Mapping[str, bytes]) -> Iterable[Argument]:
    for name, value in fields.items():
        yield name
        yield value


def _pairs(rows: Sequence[tuple[bytes, bytes]]) -> Iterable[Argument]:
    for row_id, row in rows:
        yield row_id
        yield row


class Scripts:
    """The scripts, run through one transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport = transport
        # How often each script has refused a stale epoch, since this was made.
        self.lost: Counter[str] = Counter()

    def _begin(
        self, name: str, keys: Sequence[str], arguments: Iterable[Argument]
    ) -> asyncio.Future[Any]:
        script = SCRIPTS[name]
        return self.transport.sender.send(
            "EVALSHA",
            script.digest,
            len(keys),
            *keys,
            *arguments,
            repeatable=True,
            lasting=name in _LASTING,
            script=script,
        )

    async def _run(self, name: str, keys: Sequence[str], arguments: Iterable[Argument]) -> Reply:
        try:
            reply: Any = await self._begin(name, keys, arguments)
        except CommandRefused as error:
            if "WRONGTYPE" not in str(error):
                raise
            raise CorruptState(keys[0], f"{name} found a key of another type") from error
        try:
            word = _WORDS[reply[0]]
            if word is Word.LOST:
                self.lost[name] += 1
            return Reply(word, reply[1:])
        except (KeyError, IndexError, TypeError) as error:
            raise CorruptState(keys[0], f"{name} gave an unknown reply") from error

    # The log

    async def append_log(
        self,
        log: LogKeys,
        rows: Sequence[tuple[bytes, bytes]],
        *,
        topic: str | None,
        max_rows: int,
        ttl_ms: int,
        announce: bool,
        fence: Fence | None = None,
    ) -> Reply:
        """OK new n... | LOST epoch."""
        return await self._run(
            "append_log",
            (log.rows, log.ids, log.topic(topic), log.channel, fence.lease if fence else log.ids),
            (
                fence.epoch if fence else "",
                topic_bytes(topic),
                max(max_rows, 0),
                ttl_ms,
                int(announce),
                *_pairs(rows),
            ),
        )

    async def read_log(
        self, log: LogKeys, *, after: int | None, after_ms: int, count: int, topic: str | None
    ) -> Reply:
        """OK first last last_ms rows | GAP reason first before_ms last last_ms."""
        return await self._run(
            "read_log",
            (log.rows, log.ids, log.topic(topic)),
            ("" if after is None else after, after_ms, count, topic_bytes(topic)),
        )

    async def tail_log(
        self, log: LogKeys, *, after_id: bytes, count: int, topic: str | None
    ) -> Reply:
        """OK rows."""
        return await self._run(
            "tail_log",
            (log.rows, log.ids, log.topic(topic)),
            (after_id, count, topic_bytes(topic)),
        )

    async def find_row(self, log: LogKeys, *, row_id: bytes) -> Reply:
        """OK n ms | MISSING."""
        return await self._run("find_row", (log.rows, log.ids), (row_id,))

    async def clear_log(self, log: LogKeys, *, topics: Sequence[str]) -> Reply:
        """OK dropped."""
        keys = [log.rows, log.ids, *(log.topic(topic) for topic in topics)]
        return await self._run("clear_log", keys, ())

    async def set_aside(
        self, unreadable: str, *, place: str, note: bytes, most: int, ttl_ms: int
    ) -> Reply:
        """OK new."""
        return await self._run("set_aside", (unreadable,), (raw(place), note, most, ttl_ms))

    # The record

    async def save_record(
        self,
        record: str,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        expected: int | Literal["+"] | None = None,
        index: str | None = None,
        member: str | None = None,
        fence: Fence | None = None,
    ) -> Reply:
        """OK version | STALE version | LOST epoch."""
        return await self._run(
            "save_record",
            (record, index or record, fence.lease if fence else record),
            (
                fence.epoch if fence else "",
                "" if expected is None else expected,
                write,
                ttl_ms,
                topic_bytes(member) if index else b"",
                *_flat(fields),
            ),
        )

    async def save_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        finished: bool,
        updated_at_us: int,
    ) -> Reply:
        """OK version | STALE version."""
        return await self._run(
            "save_task",
            (keys.task, keys.tasks),
            (
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                int(finished),
                updated_at_us,
                *_flat(fields),
            ),
        )

    async def delete_record(
        self, record: str, *, index: str | None, member: str | None, only_if_gone: bool
    ) -> Reply:
        """OK deleted."""
        return await self._run(
            "delete_record",
            (record, index or record),
            (topic_bytes(member) if index else b"", int(only_if_gone)),
        )

    # The token

    async def open_token(
        self, token: str, *, payload: bytes, mark: str, ttl_ms: int, keep_ms: int
    ) -> Reply:
        """OK opened | TAKEN by at decision."""
        return await self._run("open_token", (token,), (payload, mark, ttl_ms, keep_ms))

    async def resolve_token(
        self, token: str, *, claim: str, by: str, decision: bytes, keep_ms: int
    ) -> Reply:
        """OK payload task | TAKEN by at decision | EXPIRED | MISSING."""
        return await self._run("resolve_token", (token,), (raw(claim), raw(by), decision, keep_ms))

    # The blob

    async def stage_chunk(self, upload: str, *, number: int, data: bytes, ttl_ms: int) -> Reply:
        """OK chunks."""
        return await self._run("stage_chunk", (upload,), (number, data, ttl_ms))

    async def commit_blob(
        self,
        keys: BlobKeys,
        upload: str,
        *,
        blob_id: str,
        ref: bytes,
        size: int,
        chunks: int,
        trace: str | None,
        ttl_ms: int,
        strategy: str,
        limits: tuple[int, int, int, int],
        victims: Sequence[str],
    ) -> Reply:
        """OK ref | AGAIN id... | MISSING. ``limits``: count, bytes, a trace's count, bytes."""
        places = [keys.blob(victim) for victim in victims]
        return await self._run(
            "commit_blob",
            (upload, keys.blob(blob_id), keys.expiry, keys.use, keys.about, *places),
            (
                raw(blob_id),
                ref,
                size,
                chunks,
                topic_bytes(trace),
                ttl_ms,
                strategy,
                *limits,
                *map(raw, victims),
            ),
        )

    async def touch_blob(self, keys: BlobKeys, *, blob_id: str) -> Reply:
        """OK noted."""
        return await self._run("touch_blob", (keys.use,), (raw(blob_id),))

    async def list_blobs(self, keys: BlobKeys) -> Reply:
        """OK ids."""
        return await self._run("list_blobs", (keys.expiry,), ())

    async def delete_blob(self, keys: BlobKeys, *, blob_id: str) -> Reply:
        """OK deleted left."""
        return await self._run(
            "delete_blob", (keys.blob(blob_id), keys.expiry, keys.use, keys.about), (raw(blob_id),)
        )

    async def note_member(self, index: str, *, member: str, ttl_ms: int) -> Reply:
        """OK noted."""
        return await self._run("note_member", (index,), (raw(member), ttl_ms))

    def begin_note_member(self, index: str, *, member: str, ttl_ms: int) -> asyncio.Future[Any]:
        """Queue `note_member` at once, before whatever the caller sends next."""
        return self._begin("note_member", (index,), (raw(member), ttl_ms))

    # The lease

    async def acquire_lease(
        self, lease: str, *, owner: str, duration_ms: int, keep_ms: int
    ) -> Reply:
        """OK epoch | HELD left_ms."""
        return await self._run("acquire_lease", (lease,), (raw(owner), duration_ms, keep_ms))

    async def renew_lease(
        self, lease: str, *, owner: str, epoch: int, duration_ms: int, keep_ms: int
    ) -> Reply:
        """OK epoch | LOST epoch."""
        return await self._run("renew_lease", (lease,), (raw(owner), epoch, duration_ms, keep_ms))

    async def release_lease(self, lease: str, *, owner: str, epoch: int) -> Reply:
        """OK epoch | LOST epoch."""
        return await self._run("release_lease", (lease,), (raw(owner), epoch))

    # An agent's session

    async def save_session(
        self,
        session: str,
        fields: Mapping[str, bytes],
        *,
        index: str,
        session_id: str,
        tags: str,
        expected: int,
        base: str,
        dropped: Sequence[str],
        write: str,
        ttl_ms: int,
        fence: Fence | None = None,
    ) -> Reply:
        """OK version | STALE version | MISSING | AGAIN | LOST epoch."""
        return await self._run(
            "save_session",
            (session, index, fence.lease if fence else session),
            (
                fence.epoch if fence else "",
                expected,
                raw(base),
                raw(write),
                ttl_ms,
                session_id,
                tags,
                len(dropped),
                *dropped,
                *_flat(fields),
            ),
        )

    async def delete_session(self, session: str, *, index: str, session_id: str) -> Reply:
        """OK deleted."""
        return await self._run("delete_session", (session, index), (session_id,))

    # The watch list

    async def watch_entry(self, watch: str, *, entry: bytes, delay_ms: int, sooner: bool) -> Reply:
        """OK when."""
        return await self._run("watch_entry", (watch,), (entry, delay_ms, int(sooner)))

    async def claim_due(self, watch: str, *, limit: int, hold_ms: int) -> Reply:
        """OK mark entry..."""
        return await self._run("claim_due", (watch,), (limit, hold_ms))

    async def settle_claim(
        self, watch: str, *, mark: bytes, entries: Sequence[tuple[bytes, int | None]]
    ) -> Reply:
        """OK settled. ``entries`` with their delays; None takes an entry out."""
        tail: list[Argument] = [mark]
        for entry, delay_ms in entries:
            tail += (entry, "" if delay_ms is None else delay_ms)
        return await self._run("settle_claim", (watch,), tail)

    # OAuth tokens

    async def save_oauth_token(
        self, token: str, *, value: bytes, expires_ms: int | None, ttl_ms: int
    ) -> Reply:
        """OK kept."""
        expires = "" if expires_ms is None else expires_ms
        return await self._run("save_oauth_token", (token,), (value, expires, ttl_ms))

    # Scheduled jobs

    async def save_job(
        self,
        keys: JobKeys,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        job_id: str,
        next_us: int | None,
        interval_us: int | None,
        enabled: bool,
    ) -> Reply:
        """OK version."""
        return await self._run(
            "save_job",
            (keys.job, keys.jobs, keys.jobs_of, keys.due),
            (
                write,
                ttl_ms,
                raw(job_id),
                "" if next_us is None else next_us,
                "" if interval_us is None else interval_us,
                int(enabled),
                *_flat(fields),
            ),
        )

    async def claim_job(
        self, job: str, due: str, *, owner: str, lease_ms: int, job_id: str, asked_us: int
    ) -> Reply:
        """OK document next attempts | HELD left_ms | DENIED | MISSING."""
        return await self._run("claim_job", (job, due), (owner, lease_ms, raw(job_id), asked_us))

    async def hold_job(self, job: str, *, owner: str, lease_ms: int, begins: bool) -> Reply:
        """OK attempts | LOST."""
        return await self._run("hold_job", (job,), (owner, lease_ms, int(begins)))

    async def end_job(self, keys: JobKeys, *, owner: str, job_id: str, ttl_ms: int) -> Reply:
        """OK next_us | LOST."""
        return await self._run(
            "end_job",
            (keys.job, keys.jobs, keys.jobs_of, keys.due),
            (owner, raw(job_id), ttl_ms),
        )

    # A2A tasks

    async def create_a2a_task(
        self,
        keys: A2AKeys,
        fields: Mapping[str, bytes],
        *,
        task_id: str,
        history: Sequence[bytes],
        artifacts: Sequence[bytes],
        write: str,
        ttl_ms: int,
    ) -> Reply:
        """OK | TAKEN."""
        return await self._run(
            "create_a2a_task",
            (keys.task, keys.tasks, keys.history, keys.artifacts, keys.push),
            (
                write,
                ttl_ms,
                raw(task_id),
                len(history),
                len(history) + len(artifacts),
                *history,
                *artifacts,
                *_flat(fields),
            ),
        )

    async def update_a2a_task(
        self,
        keys: A2AKeys,
        fields: Mapping[str, bytes],
        *,
        task_id: str,
        row: bytes,
        place: str,
        item: bytes,
        max_rows: int,
        write: str,
        ttl_ms: int,
    ) -> Reply:
        """OK n | MISSING. ``place``: history, artifacts, or nothing."""
        log = keys.updates
        return await self._run(
            "update_a2a_task",
            (
                keys.task,
                keys.tasks,
                keys.history,
                keys.artifacts,
                keys.push,
                log.rows,
                log.ids,
                log.channel,
            ),
            (write, ttl_ms, raw(task_id), max_rows, row, place, item, *_flat(fields)),
        )

    async def read_a2a_task(self, keys: A2AKeys, *, messages: int, artifacts: bool) -> Reply:
        """OK fields history artifacts last last_ms | MISSING."""
        return await self._run(
            "read_a2a_task",
            (keys.task, keys.history, keys.artifacts, keys.updates.ids),
            (messages, int(artifacts)),
        )

    async def save_a2a_push(self, keys: A2AKeys, *, config_id: str, config: bytes) -> Reply:
        """OK | MISSING. An empty ``config`` deletes it."""
        return await self._run("save_a2a_push", (keys.task, keys.push), (raw(config_id), config))

    # Registered tasks

    async def register_task_state(
        self,
        keys: TaskStateKeys,
        *,
        task_id: str,
        context_id: str,
        stream_id: str,
        state: str,
        write: str,
        ttl_ms: int,
    ) -> Reply:
        """OK fields last last_ms | TAKEN fields last last_ms."""
        return await self._run(
            "register_task_state",
            (*_registered(keys), keys.events.rows, keys.events.ids),
            (write, ttl_ms, raw(task_id), raw(context_id), raw(stream_id), state),
        )

    async def record_task_event(
        self,
        keys: TaskStateKeys,
        *,
        task_id: str,
        event_id: bytes,
        state: str | None,
        ends: bool,
        row: bytes,
        max_rows: int,
        active_ms: int,
        kept_ms: int,
    ) -> Reply:
        """OK entry new | DENIED state | MISSING."""
        log = keys.events
        return await self._run(
            "record_task_event",
            (*_registered(keys), log.rows, log.ids, log.channel),
            (
                event_id,
                raw(task_id),
                state or "",
                int(ends),
                row,
                max(max_rows, 0),
                active_ms,
                kept_ms,
            ),
        )

    async def read_task_state(self, keys: TaskStateKeys) -> Reply:
        """OK fields last last_ms | MISSING."""
        return await self._run("read_task_state", (keys.task, keys.events.ids), ())

    async def set_task_stream(self, keys: TaskStateKeys, *, stream_id: str) -> Reply:
        """OK | MISSING."""
        return await self._run("set_task_stream", (keys.task,), (raw(stream_id),))

    async def drop_task_state(self, keys: TaskStateKeys, *, task_id: str, before_us: int) -> Reply:
        """OK | STALE | MISSING."""
        return await self._run(
            "drop_task_state",
            (*_registered(keys), keys.events.rows, keys.events.ids),
            (raw(task_id), before_us),
        )

    async def count_task_states(self, *, active: str, kept: str) -> Reply:
        """OK active completed."""
        return await self._run("count_task_states", (active, kept), ())

    # The life of a task

    async def create_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        steering: LogKeys,
        updates: LogKeys,
        write: str,
        ttl_ms: int,
        before: int | None = None,
    ) -> Reply:
        """OK version | STALE version | EXPIRED."""
        return await self._run(
            "create_task",
            (
                keys.task,
                keys.tasks,
                keys.journal,
                steering.ids,
                keys.lease,
                updates.topic(keys.task_id),
            ),
            (
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                "" if before is None else before,
                *_flat(fields),
            ),
        )

    async def look_task(self, keys: TaskKeys) -> Reply:
        """OK status version epoch left_ms order priority crashes queue ours parent waits_for |
        MISSING.
        """
        return await self._run("look_task", (keys.task, keys.lease), ())

    async def start_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        owner: str,
        lease_ms: int,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK epoch fields | HELD left_ms | DENIED status | MISSING."""
        said = announcement
        return await self._run(
            "start_task",
            (keys.task, keys.tasks, keys.lease, *_log_keys(keys, said)),
            (
                raw(owner),
                lease_ms,
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                *_flat(fields),
            ),
        )

    async def move_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        epoch: int | None,
        from_states: Iterable[str],
        release: bool,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK version epoch | DENIED status | LOST epoch | MISSING."""
        said = announcement
        return await self._run(
            "move_task",
            (keys.task, keys.tasks, keys.lease, *_log_keys(keys, said), keys.journal),
            (
                "" if epoch is None else epoch,
                f" {' '.join(from_states)} ",
                int(release),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                *_flat(fields),
            ),
        )

    async def open_pause(
        self,
        keys: TaskKeys,
        *,
        epoch: int,
        token: str,
        pauses: str,
        entry: str,
        note: bytes,
        owner: bytes,
        about: bytes,
        token_ttl_ms: int,
        keep_ms: int,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK note left_ms | DENIED status | LOST epoch."""
        said = announcement
        return await self._run(
            "open_pause",
            (keys.task, keys.lease, *_log_keys(keys, said), token, keys.journal, pauses),
            (
                epoch,
                raw(entry),
                note,
                owner,
                about,
                token_ttl_ms,
                keep_ms,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
            ),
        )

    async def pause_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        epoch: int,
        token: str,
        entry: str,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK version | TAKEN by at decision | EXPIRED | MISSING | DENIED status | LOST epoch."""
        said = announcement
        return await self._run(
            "pause_task",
            (keys.task, keys.tasks, keys.lease, *_log_keys(keys, said), token, keys.journal),
            (
                epoch,
                raw(entry),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                *_flat(fields),
            ),
        )

    async def decide_pause(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        token: str,
        pauses: str,
        entry: str,
        claim: str,
        by: str,
        decision: bytes,
        note: bytes,
        keep_ms: int,
        ttl_ms: int,
        announcement: Announcement,
        overdue: bool = False,
        epoch: int | None = None,
    ) -> Reply:
        """OK status epoch | TAKEN by at decision | EXPIRED | HELD left_ms | MISSING |
        DENIED status | LOST epoch. ``announcement``: of the task's move, else of the decision.
        """
        said = announcement
        log_keys = _log_keys(keys, said)
        return await self._run(
            "decide_pause",
            (keys.task, keys.tasks, keys.lease, *log_keys, token, keys.journal, pauses),
            (
                "" if epoch is None else epoch,
                int(overdue),
                raw(claim),
                raw(by),
                decision,
                keep_ms,
                raw(entry),
                note,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                *_flat(fields),
            ),
        )

    # Children

    async def spawn_task(
        self,
        child: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        parent: TaskKeys,
        children: str,
        epoch: int,
        entry: str,
        note: bytes,
        before: int,
        write: str,
        ttl_ms: int,
        index_ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK version | STALE note | EXPIRED | DENIED status | LOST epoch."""
        said = announcement
        of_parent = (parent.task, parent.lease, parent.journal, children)
        return await self._run(
            "spawn_task",
            (child.task, child.tasks, *_log_keys(child, said), *of_parent),
            (
                epoch,
                raw(entry),
                note,
                before,
                write,
                ttl_ms,
                index_ttl_ms,
                topic_bytes(child.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                *_flat(fields),
            ),
        )

    async def join_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        child: TaskKeys,
        epoch: int,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK version | AGAIN | MISSING | DENIED status | LOST epoch."""
        said = announcement
        return await self._run(
            "join_task",
            (keys.task, keys.tasks, keys.lease, *_log_keys(keys, said), child.task, keys.journal),
            (
                epoch,
                raw(child.task_id),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                *_flat(fields),
            ),
        )

    async def wake_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        child: TaskKeys,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK version | HELD | DENIED status | MISSING."""
        said = announcement
        return await self._run(
            "wake_task",
            (keys.task, keys.tasks, keys.lease, *_log_keys(keys, said), child.task, keys.journal),
            (
                raw(child.task_id),
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                *_flat(fields),
            ),
        )

    async def note_step(
        self,
        keys: TaskKeys,
        *,
        epoch: int,
        entry: str,
        checkpoint: bool,
        chunks: int,
        about: bytes,
        result: bytes,
    ) -> Reply:
        """OK note | LOST epoch | MISSING."""
        return await self._run(
            "note_step",
            (keys.journal, keys.lease, keys.task),
            (epoch, raw(entry), "true" if checkpoint else "false", chunks, about, result),
        )

    async def keep_part(
        self, keys: TaskKeys, *, epoch: int, entry: str, number: int, data: bytes
    ) -> Reply:
        """OK number | STALE | LOST epoch | MISSING."""
        return await self._run(
            "keep_part",
            (keys.journal, keys.lease, keys.task),
            (epoch, raw(entry), number, data),
        )

    async def read_journal(self, keys: TaskKeys) -> Reply:
        """OK notes."""
        return await self._run("read_journal", (keys.journal, keys.task), (_SLICE,))

    # A session's context

    async def update_context(
        self,
        context: str,
        fields: Mapping[str, bytes],
        *,
        results: Sequence[tuple[bytes, bytes]],
        content_hash: str,
        hashed: bool,
        expected: int | None,
        call: str,
        ttl_ms: int,
    ) -> Reply:
        """OK number hash | STALE number."""
        return await self._run(
            "update_context",
            (context,),
            (
                "" if expected is None else expected,
                call,
                ttl_ms,
                content_hash,
                int(hashed),
                len(results),
                *_pairs(results),
                *_flat(fields),
            ),
        )

    async def apply_patch(
        self,
        keys: PatchKeys,
        *,
        basis: tuple[int, str],
        payload: bytes,
        result: bytes,
        decision: bytes,
        by: str,
        wait_ms: int,
        keep_ms: int,
        limit: int,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK new decision version | STALE number | DENIED waiting."""
        said = announcement
        return await self._run(
            "apply_patch",
            keys.with_log(said.log),
            (
                *basis,
                raw(keys.patch_id),
                raw(keys.task_id),
                payload,
                result,
                decision,
                raw(by),
                wait_ms,
                keep_ms,
                limit,
                ttl_ms,
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
            ),
        )

    async def resolve_patch(
        self,
        keys: PatchKeys,
        *,
        claim: str,
        by: str,
        decision: bytes,
        keep_ms: int,
        basis: tuple[int, str],
        result: bytes,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK won decision version | TAKEN by at decision | EXPIRED | MISSING | STALE number."""
        said = announcement
        return await self._run(
            "resolve_patch",
            keys.with_log(said.log),
            (
                raw(claim),
                raw(by),
                decision,
                keep_ms,
                raw(keys.patch_id),
                raw(keys.task_id),
                *basis,
                result,
                ttl_ms,
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
            ),
        )

    # A group of tasks

    async def create_group(
        self,
        keys: GroupKeys,
        fields: Mapping[str, bytes],
        *,
        alias: bytes,
        instead_of: str | None,
        write: str,
        ttl_ms: int,
    ) -> Reply:
        """OK group_id new."""
        return await self._run(
            "create_group",
            keys.all,
            (
                raw(keys.group_id),
                alias,
                int(instead_of is not None),
                raw(instead_of or ""),
                write,
                ttl_ms,
                *_flat(fields),
            ),
        )

    async def join_group(self, keys: GroupKeys, *, task_id: str, write: str, ttl_ms: int) -> Reply:
        """OK new | DENIED status | MISSING."""
        return await self._run(
            "join_group",
            (keys.group, keys.groups),
            (raw(keys.group_id), raw(task_id), write, ttl_ms),
        )

    async def finish_member(
        self,
        keys: GroupKeys,
        *,
        task_id: str,
        outcome: str,
        patch_id: str | None,
        call: str,
        ttl_ms: int,
        ended_ttl_ms: int,
    ) -> Reply:
        """OK status completed | DENIED status | MISSING."""
        return await self._run(
            "finish_member",
            (keys.group, keys.groups),
            (
                raw(keys.group_id),
                raw(task_id),
                outcome,
                int(patch_id is not None),
                raw(patch_id or ""),
                raw(call),
                ttl_ms,
                ended_ttl_ms,
            ),
        )

    async def close_group(
        self,
        keys: GroupKeys,
        *,
        target: str,
        alias: bytes,
        call: str,
        ttl_ms: int,
        ended_ttl_ms: int,
    ) -> Reply:
        """OK status completed | DENIED status | MISSING."""
        return await self._run(
            "close_group",
            keys.all,
            (raw(keys.group_id), target, alias, raw(call), ttl_ms, ended_ttl_ms),
        )

    # The life of a task

    async def transition_task(
        self,
        keys: TaskKeys,
        fields: Mapping[str, bytes],
        *,
        epoch: int | None,
        from_phases: Iterable[str],
        status: str,
        phase: str,
        write: str,
        ttl_ms: int,
        announcement: Announcement,
    ) -> Reply:
        """OK fields | DENIED phase | LOST epoch | MISSING."""
        said = announcement
        return await self._run(
            "transition_task",
            (keys.task, keys.tasks, keys.lease, *_log_keys(keys, said), keys.journal),
            (
                "" if epoch is None else epoch,
                f" {' '.join(from_phases)} ",
                write,
                ttl_ms,
                topic_bytes(keys.task_id),
                said.max_rows,
                said.ttl_ms,
                *_pairs(said.rows),
                status,
                phase,
                *_flat(fields),
            ),
        )

    # Snapshots

    async def save_snapshot(
        self,
        keys: SnapshotKeys,
        *,
        version: str,
        snapshot_id: str,
        checkpoint: bool,
        row: bytes,
        ttl_ms: int,
    ) -> Reply:
        """OK."""
        return await self._run(
            "save_snapshot",
            (keys.rows, keys.index),
            (version, snapshot_id, int(checkpoint), row, ttl_ms),
        )

    async def read_snapshot(self, keys: SnapshotKeys, *, prefix: str) -> Reply:
        """OK version row | MISSING."""
        return await self._run("read_snapshot", (keys.rows, keys.index), (prefix,))

    async def delete_snapshots(
        self, keys: SnapshotKeys, *, version: str | None, write: str
    ) -> Reply:
        """OK removed. None stands for all versions."""
        return await self._run(
            "delete_snapshots", (keys.rows, keys.index, keys.removal), (version or "", write)
        )

    async def rollback_snapshots(self, keys: SnapshotKeys, *, prefix: str, write: str) -> Reply:
        """OK version row | MISSING."""
        return await self._run(
            "rollback_snapshots", (keys.rows, keys.index, keys.removal), (prefix, write)
        )

    async def prune_snapshots(
        self, keys: SnapshotKeys, *, keep_last: int, keep_checkpoints: bool, write: str
    ) -> Reply:
        """OK removed."""
        return await self._run(
            "prune_snapshots",
            (keys.rows, keys.index, keys.removal),
            (keep_last, int(keep_checkpoints), write),
        )

    # Tasks of A2A servers

    async def write_a2a_version(
        self,
        keys: A2AVersionKeys,
        *,
        rule: str,
        write: str,
        row: bytes,
        state: str,
        phase: str,
        place: bytes,
        body: bytes,
        ttl_ms: int,
        max_rows: int,
        owner: str,
        lease_ms: int,
        keep_ms: int,
        epoch: int | None,
    ) -> Reply:
        """OK version at epoch | STALE version | DENIED state | HELD epoch | MISSING."""
        return await self._run(
            "write_a2a_version",
            keys.all,
            (
                rule,
                write,
                raw(keys.task_id),
                row,
                state,
                phase,
                place,
                body,
                ttl_ms,
                max_rows,
                owner,
                lease_ms,
                keep_ms,
                "" if epoch is None else epoch,
            ),
        )

    async def read_a2a_version(self, keys: A2AVersionKeys) -> Reply:
        """OK version at state phase owner epoch left_ms body | MISSING."""
        return await self._run("read_a2a_version", (keys.task, keys.lease), ())

    async def list_a2a_versions(
        self,
        books: A2ABooks,
        tasks: Sequence[str],
        *,
        asked: bytes,
        since: bytes,
        after: bytes,
        size: int,
        settle: bool,
        known: Sequence[bytes],
    ) -> Reply:
        """OK total more task... | AGAIN id..."""
        return await self._run(
            "list_a2a_versions",
            (books.index, books.places, books.expiry, *tasks),
            (asked, since, after, size, int(settle), *known),
        )

    async def drop_a2a_version(self, keys: A2AVersionKeys, *, write: str, ttl_ms: int) -> Reply:
        """OK version | MISSING."""
        return await self._run("drop_a2a_version", keys.all, (write, raw(keys.task_id), ttl_ms))

    async def put_a2a_config(
        self, push: str, *, name: bytes, config: bytes, most: int, ttl_ms: int
    ) -> Reply:
        """OK number | DENIED count."""
        return await self._run("put_a2a_config", (push,), (name, config, most, ttl_ms))

    async def drop_a2a_configs(self, push: str, *, owner: bytes, name: bytes) -> Reply:
        """OK deleted."""
        return await self._run("drop_a2a_configs", (push,), (owner, name))


def _log_keys(keys: TaskKeys, said: Announcement) -> tuple[str, str, str, str]:
    return said.log.rows, said.log.ids, said.log.topic(keys.task_id), said.log.channel


def _registered(keys: TaskStateKeys) -> tuple[str, str, str, str]:
    return keys.task, keys.active, keys.completed, keys.kept
