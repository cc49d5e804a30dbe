"""Run a script, and read its reply."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

from redis_state.errors import CommandRefused, CorruptState, RedisStateError
from redis_state.models.version import Version
from redis_state.scripts.loader import load_script, script_names
from redis_state.transport.keys import LogKeys, call_key
from redis_state.transport.resp import Argument, PreparedScript, prepare, prepared_keys
from redis_state.transport.script import Script
from redis_state.transport.transport import Transport

T = TypeVar("T")

# Every script is read at import, so that a package built without them fails at once.
SCRIPTS: dict[str, Script] = {name: load_script(name) for name in script_names()}

# How much later than its caller's deadline a call may reach a server that had stopped for a while.
_LATE_MS = 60_000

# The topic of a row whose topic is the empty text: no UTF-8 text encodes to this byte.
_EMPTY_TOPIC = b"\xff"


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
        "emit_update",
        "record_entry",
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


class ReplyCode(StrEnum):
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
    REWOUND = "REWOUND"


_WORDS = {word.value.encode(): word for word in ReplyCode}


@dataclass(slots=True)
class Reply:
    """What a script answered: its word, then its facts as the header lists them."""

    word: ReplyCode
    facts: list[Any]

    def text(self, place: int) -> str:
        """Read one fact as text."""
        fact = self.facts[place]
        return fact.decode("utf-8", "surrogatepass") if isinstance(fact, bytes) else str(fact)

    @property
    def version(self) -> Version:
        """Read the version in a reply STALE: its number and its write."""
        return Version(self.facts[0], self.text(1))


# What runs a script is a coroutine without one of its own around it: each costs every call a bit.
PendingReply: TypeAlias = Coroutine[Any, Any, Reply]


class Fence(NamedTuple):
    """The lease under which a worker writes: once another claim has it, writes are refused."""

    lease: str
    epoch: int
    owner: str

    @property
    def mark(self) -> bytes:
        """What a write carries: both, for a server whose history went back gives epochs twice."""
        return raw(f"{self.epoch}  {self.owner}")


class LaneState(NamedTuple):
    """Where a lane of a run stands, as the journal keeps it: the name of its entry, and JSON."""

    entry: str
    state: bytes


NO_LANE = LaneState("", b"")


class LogLimits(NamedTuple):
    """How long a log grows, and whether its rows are told as they come."""

    max_rows: int  # 0: any number
    ttl_ms: int
    announce: int  # 1 or 0


@dataclass(frozen=True, slots=True)
class Announcement:
    """An update that tells of a task's move, written in the same step."""

    log: LogKeys
    max_rows: int
    ttl_ms: int
    rows: Sequence[tuple[bytes, bytes]]

    def keys(self, task_id: str) -> tuple[str, str, str, str]:
        """List the keys of the log that it is written to."""
        return self.log.rows, self.log.ids, self.log.topic(task_id), self.log.channel


def raw(text: str) -> bytes:
    """Write any text as bytes; lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def expecting(version: int | None) -> bytes:
    """Write which version a script shall find: with its write if that is known, b"" for any."""
    if version is None:
        return b""
    if isinstance(version, Version) and version.write:
        return raw(f"{version:d} {version.write}")
    return b"%d" % version


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


def flat(fields: Mapping[str, bytes]) -> Iterable[Argument]:
    """List the names and values of fields."""
    return chain.from_iterable(fields.items())


def pairs(rows: Sequence[tuple[bytes, bytes]]) -> Iterable[Argument]:
    """List the ids and rows."""
    return chain.from_iterable(rows)


class ScriptRunner:
    """The scripts, run through one transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport = transport
        # How often each script has refused a stale epoch, since this was made.
        self.lost: Counter[str] = Counter()

    def _begin(
        self, name: str, keys: tuple[str, ...], arguments: tuple[Argument, ...]
    ) -> asyncio.Future[Any]:
        """Run a script, and leave its reply to whoever asks for it."""
        return self._send(_prepared(name, keys), arguments)

    def _send(self, prepared: PreparedScript, more: tuple[Argument, ...]) -> asyncio.Future[Any]:
        lasting = prepared.script.name in _LASTING
        return self.transport.sender.run(prepared, more, lasting=lasting)

    async def read(self, reply: Awaitable[T], key: str, *, command: str) -> T:
        """Wait for a command that reads a key. Errors: CorruptState if that is of another type."""
        try:
            return await reply
        except CommandRefused as error:
            raise _corrupt(error, key, command) from error

    def _run(
        self, name: str, keys: tuple[str, ...], arguments: tuple[Argument, ...]
    ) -> PendingReply:
        return self._run_prepared(_prepared(name, keys), arguments)

    def _run_once(
        self, name: str, keys: tuple[str, ...], arguments: tuple[Argument, ...]
    ) -> PendingReply:
        """Run a script that keeps its reply for as long as this call may be repeated.

        A repetition gets that reply and does nothing: what another client wrote meanwhile stays.
        The reply's key stands behind the first key, and how long it is kept before the arguments.
        """
        keep_ms = int(self.transport.settings.call_timeout_s * 1000) + _LATE_MS
        call = call_key(keys[0], os.urandom(9).hex())
        # A key that no other call has is not worth remembering packed.
        prepared = prepare(SCRIPTS[name], (keys[0], call, *keys[1:]))
        return self._run_prepared(prepared, (keep_ms, *arguments))

    def run_once(self, verb: str, key: str, *arguments: Argument) -> PendingReply:
        """OK reply. Run a command that removes and replies with a number, once per call."""
        return self._run_once("run_once", (key,), (verb, *arguments))

    def delete(self, key: str) -> PendingReply:
        """OK deleted. Delete a key, once per call."""
        return self.run_once("DEL", key)

    def unlink(self, key: str) -> PendingReply:
        """OK deleted. Delete a key that may be large, once per call."""
        return self.run_once("UNLINK", key)

    def hdel(self, key: str, *fields: Argument) -> PendingReply:
        """OK deleted. Delete fields of a hash, once per call."""
        return self.run_once("HDEL", key, *fields)

    def zrem(self, key: str, *members: Argument) -> PendingReply:
        """OK removed. Remove members of a sorted set, once per call."""
        return self.run_once("ZREM", key, *members)

    async def _run_prepared(self, prepared: PreparedScript, more: tuple[Argument, ...]) -> Reply:
        try:
            reply: Any = await self._send(prepared, more)
        except CommandRefused as error:
            raise _corrupt(error, prepared.keys[0], prepared.script.name) from error
        try:
            word = _WORDS[reply[0]]
            if word is ReplyCode.LOST:
                self.lost[prepared.script.name] += 1
            return Reply(word, reply[1:])
        except (KeyError, IndexError, TypeError) as error:
            name = prepared.script.name
            raise CorruptState(prepared.keys[0], f"{name} gave an unknown reply") from error


def _prepared(name: str, keys: tuple[str, ...]) -> PreparedScript:
    script = SCRIPTS[name]
    return prepared_keys(script, keys) if script.each else prepare(script, keys)


def _corrupt(error: CommandRefused, key: str, name: str) -> RedisStateError:
    if "WRONGTYPE" not in str(error):
        return error
    return CorruptState(key, f"{name} found a key of another type")
