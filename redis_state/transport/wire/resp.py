"""Commands as the bytes that a server reads.

Most calls are of few sessions and tasks at a time, and differ in their last arguments only: what
they have alike is packed once, as `PreparedScript`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import hiredis

from redis_state.errors import CallerError
from redis_state.transport.wire.script import Script

Argument = str | bytes | int
Command = tuple[Argument, ...]

# In C: redis-py's own asks of every argument what it is, a third of a call's cost.
pack: Callable[[Command], bytes] = cast("Any", hiredis).pack_command


def bulks(arguments: Command) -> bytes:
    """Pack arguments without saying how many they are."""
    packed = pack(arguments)
    return packed[packed.index(b"\n") + 1 :]


def unbulk(packed: bytes, count: int) -> list[bytes]:
    """Read so many packed arguments."""
    return unbulk_command(b"*%d\r\n" % count + packed)


def unbulk_command(packed: bytes) -> list[bytes]:
    """Read a packed command."""
    reader = hiredis.Reader()
    reader.feed(packed)
    return cast("list[bytes]", reader.gets())


class PackedCommand(NamedTuple):
    """A command that reads, as it is and packed."""

    command: Command
    packed: bytes


def packed_command(*command: Argument) -> PackedCommand:
    """Pack a command that reads. Errors: what packing raises."""
    return PackedCommand(command, pack(command))


class PreparedScript(NamedTuple):
    """A script with its keys and its first arguments, as they are and packed."""

    script: Script
    keys: tuple[str, ...]
    arguments: Command
    packed_keys: bytes
    packed_arguments: bytes

    def command(self, *more: Argument) -> Command:
        """Write a call as it would be sent alone to a server that knows the script."""
        given = (len(self.keys), *self.keys, *self.arguments, *more)
        return ("EVALSHA", self.script.digest, *given)


def prepare(script: Script, keys: tuple[str, ...], arguments: Command = ()) -> PreparedScript:
    """Prepare calls of a script. Errors: CallerError for what cannot be sent."""
    try:
        packed = bulks(arguments) if arguments else b""
        return PreparedScript(script, keys, arguments, bulks(keys), packed)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's to know
        raise CallerError(f"{script.name} cannot be sent: {error}") from None


# For keys that will be named again.
prepared_keys: Callable[[Script, tuple[str, ...]], PreparedScript] = lru_cache(maxsize=4096)(
    prepare
)


def head_of_text(script: Script, keys: int, arguments: int) -> bytes:
    """Begin the call of a script with its text."""
    return _head_of(("EVAL", script.text, keys), keys + arguments)


@lru_cache(maxsize=1024)
def head_of_digest(digest: str, keys: int, arguments: int) -> bytes:
    """Begin the call of a script that the server knows."""
    return _head_of(("EVALSHA", digest, keys), keys + arguments)


def _head_of(command: Command, more: int) -> bytes:
    """Pack the beginning of a command that has so many ``more`` arguments."""
    return b"*%d\r\n" % (len(command) + more) + bulks(command)
