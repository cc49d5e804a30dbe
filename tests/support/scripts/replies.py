"""What the tests of scripts ask of a server, and the replies that they expect."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from redis_state.scripts import (
    Reply,
    ReplyCode,
    Scripts,
    TaskKeys,
)
from redis_state.testing import eventually
from redis_state.transport.wire.resp import Argument

T = TypeVar("T")


E = TypeVar("E", bound=Exception)


HOUR = 3_600_000


def ok(*facts: Any) -> Reply:
    """Make the reply OK with these facts."""
    return Reply(ReplyCode.OK, list(facts))


def no(word: ReplyCode, *facts: Any) -> Reply:
    """Make another reply."""
    return Reply(word, list(facts))


async def ask(scripts: Scripts, *command: Argument) -> Any:
    """Send a plain command."""
    return await scripts.transport.sender.send(*command, repeatable=True)


async def lives(scripts: Scripts, *keys: str) -> list[int]:
    """Tell how many milliseconds each key has left: -1 for ever, -2 not there."""
    return [int(await ask(scripts, "PTTL", key)) for key in keys]


async def fields(scripts: Scripts, key: str) -> dict[str, bytes]:
    """Read a hash."""
    flat: list[bytes] = await ask(scripts, "HGETALL", key)
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def outcome(call: Awaitable[T], *errors: type[E]) -> T | E:
    """Return what a call gave, or the error that it raised."""
    try:
        return await call
    except errors as error:
        return error


async def clock_ms(scripts: Scripts) -> int:
    """Read the server's clock."""
    seconds, micros = await ask(scripts, "TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def clock_passes(scripts: Scripts, moment_ms: int) -> None:
    """Wait until the server's clock is past a moment."""

    async def passed() -> bool:
        return await clock_ms(scripts) > moment_ms

    await eventually(passed, "the server's clock moves on")


async def entries_of(scripts: Scripts, task: TaskKeys) -> dict[str, bytes]:
    """Give a task's journal without the count of its entries."""
    found = await fields(scripts, task.journal)
    return {name: value for name, value in found.items() if name != "entries"}
