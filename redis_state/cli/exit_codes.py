"""How a command ends: its exit status, and one line for a person instead of a traceback."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import typer
from pydantic import ValidationError

from redis_state.errors import (
    CallerError,
    LostRace,
    NoConnection,
    RedisStateError,
    SessionNotFound,
    TaskUnknown,
    TokenUnknown,
)

T = TypeVar("T")

STATUSES = (
    "0 done, 1 it went wrong, 2 the call was wrong, 3 there is no such thing, 4 somebody was "
    "faster or it is over, 5 the server cannot be reached or does not let us in, 130 interrupted"
)


class ExitCode(IntEnum):
    """The exit statuses. They mean the same for every command, and stay as they are."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    TOO_LATE = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130


class NotFound(RedisStateError):
    """What a command was asked about is not there."""


class TooLate(RedisStateError):
    """What a command was to do was done by somebody else, or cannot be done any more."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do some work in a loop of its own. See `or_exit`."""
    return or_exit(partial(asyncio.run, work))


def or_exit(work: Callable[[], T]) -> T:
    """Do some work; turn the errors a person can act on into one line and a status."""
    try:
        return work()
    except RedisStateError as error:
        complain(error)
        raise typer.Exit(_status_of(error)) from None
    except ValidationError as error:
        # Without the values: they may be secrets.
        wrong = error.errors(include_input=False, include_url=False)
        complain("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong))
        raise typer.Exit(ExitCode.USAGE) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def complain(problem: object) -> None:
    """Print an error to standard error."""
    print(f"redis-state: {problem}", file=sys.stderr)


def _status_of(error: RedisStateError) -> ExitCode:
    match error:
        case NoConnection():
            return ExitCode.UNAVAILABLE
        case CallerError():
            return ExitCode.USAGE
        case NotFound() | SessionNotFound() | TaskUnknown() | TokenUnknown():
            return ExitCode.NOT_FOUND
        case TooLate() | LostRace():
            return ExitCode.TOO_LATE
        case _:
            return ExitCode.FAILED
