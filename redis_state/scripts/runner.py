"""Run a script, and read its reply."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from redis_state.errors import CommandRefused, CorruptState
from redis_state.models.version import Version
from redis_state.scripts.binding import script
from redis_state.transport.keys import call_key
from redis_state.transport.transport import Transport
from redis_state.transport.wire.resp import Argument, PreparedScript, prepare
from redis_state.transport.wire.script import Script

T = TypeVar("T")

# What a script, or a command of one, says of a value that nobody of the library has written.
_UNFIT = re.compile(
    r"attempt to (?:perform|compare|index|concatenate|get|call) .*?(?= \(script |$)"
    r"|bad argument #\d+ to '\w+'"
    r"|(?:hash )?value is not (?:an integer|a (?:valid )?float)"
)
# How much later than its caller's deadline a call may reach a server that had stopped for a while.
_LATE_MS = 60_000


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
    FULL = "FULL"
    COUNTED = "COUNTED"
    REFUSED = "REFUSED"


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


class ScriptRunner:
    """The scripts, run through one transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport: Transport = transport
        # How often each script has refused a stale epoch, since this was made.
        self.lost: Counter[str] = Counter()

    def _send(self, prepared: PreparedScript, more: tuple[Argument, ...]) -> asyncio.Future[Any]:
        return self.transport.sender.run(prepared, more, lasting=prepared.script.lasting)

    async def read(self, reply: Awaitable[T], key: str, *, command: str) -> T:
        """Wait for a command that reads a key. Errors: CorruptState if that is of another type."""
        try:
            return await reply
        except CommandRefused as error:
            if not _is_of_another_type(error):
                raise
            raise _corrupt(key, command) from error

    def _run_once(
        self, script: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]
    ) -> PendingReply:
        """Run a script that keeps its reply for as long as this call may be repeated.

        A repetition gets that reply and does nothing: what another client wrote meanwhile stays.
        The reply's key stands behind the first key, and how long it is kept before the arguments.
        """
        return self._run_prepared(*self._once(script, keys, arguments))

    def _send_once(
        self, script: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]
    ) -> asyncio.Future[Any]:
        """Do the same without waiting for the reply."""
        return self._send(*self._once(script, keys, arguments))

    def _once(
        self, script: Script, keys: tuple[str, ...], arguments: tuple[Argument, ...]
    ) -> tuple[PreparedScript, tuple[Argument, ...]]:
        keep_ms = int(self.transport.settings.call_timeout_s * 1000) + _LATE_MS
        call = call_key(keys[0], os.urandom(9).hex())
        # A key that no other call has is not worth remembering packed.
        prepared = prepare(script, (keys[0], call, *keys[1:]))
        return prepared, (keep_ms, *arguments)

    @script
    def run_once(self, verb: str, key: str, *arguments: Argument) -> PendingReply:
        """OK reply. Run a command that removes and replies with a number, once per call."""

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
            name = prepared.script.name
            if _is_of_another_type(error):
                raise _corrupt(await self._damaged(prepared), name) from error
            if met := _UNFIT.search(str(error)):
                # Which key it was in the server does not say.
                unfit = f"{name} found a value that does not belong, here or in a key beside it"
                raise CorruptState(prepared.keys[0], f"{unfit}: {met.group()}") from error
            raise
        try:
            word = _WORDS[reply[0]]
            if word is ReplyCode.LOST:
                self.lost[prepared.script.name] += 1
            return Reply(word, reply[1:])
        except (KeyError, IndexError, TypeError) as error:
            name = prepared.script.name
            raise CorruptState(prepared.keys[0], f"{name} gave an unknown reply") from error

    async def _damaged(self, prepared: PreparedScript) -> str:
        """Return the key of a call that is of another type than its script declares.

        The first key stands for one that cannot be found: it is repaired by now, say, or this user
        has no right to look.
        """
        declared = prepared.script.types_of(prepared.keys)
        asked = [self.transport.commands.type_of(key) for key in declared]
        found = await asyncio.gather(*asked, return_exceptions=True)
        for (key, kind), held in zip(declared.items(), found, strict=True):
            if isinstance(held, bytes) and held.decode() not in (kind, "none"):
                return key
        return prepared.keys[0]


def _is_of_another_type(error: CommandRefused) -> bool:
    return "WRONGTYPE" in str(error)


def _corrupt(key: str, name: str) -> CorruptState:
    return CorruptState(key, f"{name} found a key of another type")
