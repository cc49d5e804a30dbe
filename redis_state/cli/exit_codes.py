"""The end of a command: its exit status, and one line for a person instead of a traceback."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

import typer
from pydantic import ValidationError

from redis_state.cli.output import harmless
from redis_state.errors import (
    ArchiveUnavailable,
    CallerError,
    LostRace,
    NoConnection,
    NotFound,
    RedisStateError,
)
from redis_state.settings import setting_problem

T = TypeVar("T")

STATUSES = (
    "0 done, 1 failed, 2 the call was wrong, 3 there is no such thing, 4 another caller was first "
    "or the task is terminal, 5 the server cannot be reached or refuses the login, 130 interrupted"
)


class ExitCode(IntEnum):
    """The exit statuses: the same for every command, and stable."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    TOO_LATE = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run some work in a loop of its own. See `or_exit`."""
    return or_exit(partial(asyncio.run, work))


def or_exit(work: Callable[[], T]) -> T:
    """Run some work; turn errors that a person can act on into one line and a status."""
    try:
        return work()
    except RedisStateError as error:
        complain(error)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        raise typer.Exit(_status_of(error)) from None
    except ValidationError as error:
        complain(setting_problem(error))
        raise typer.Exit(ExitCode.USAGE) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def complain(problem: object) -> None:
    """Print an error to standard error, on one line that no terminal obeys."""
    print(f"redis-state: {harmless(' '.join(str(problem).splitlines()))}", file=sys.stderr)


def _status_of(error: RedisStateError) -> ExitCode:
    match error:
        case NoConnection() | ArchiveUnavailable():
            return ExitCode.UNAVAILABLE
        case CallerError():
            return ExitCode.USAGE
        case NotFound():
            return ExitCode.NOT_FOUND
        case LostRace():
            return ExitCode.TOO_LATE
        case _:
            return ExitCode.FAILED
