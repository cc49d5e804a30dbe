"""The end of a command: its exit status, and one line for a person instead of a traceback."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Self, TypeVar

import typer
from pydantic import ValidationError

from redis_state.cli.output import harmless
from redis_state.errors import (
    ArchiveUnavailable,
    CallerError,
    LostRace,
    NoConnection,
    NotFound,
    OutcomeUnknown,
    RedisStateError,
    RequestTimeout,
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


@dataclass(slots=True)
class Making:
    """What a command makes under an id, for a person whose command ends without a reply.

    ``repeat`` says how the command is repeated safely, ``made`` what is there, once that is known.
    """

    repeat: str
    made: str | None = None

    @classmethod
    def named(cls, option: str, name: str) -> Self:
        """Return that of a command which repeats safely with an option that names what it makes."""
        given = f"{option} {shlex.quote(name)}"
        return cls(f"it may have happened: repeat the command with {given}, and it happens once")

    def after(self, error: RedisStateError | None) -> str | None:
        """Return what to say after an error, or an interruption."""
        if self.made is not None:
            unseen = error is None or isinstance(error, (NoConnection, ArchiveUnavailable))
            return self.made if unseen else None
        is_open = error is None or isinstance(error, (OutcomeUnknown, RequestTimeout))
        return self.repeat if is_open else None


def run(work: Coroutine[Any, Any, T], *, making: Making | None = None) -> T:
    """Run some work in a loop of its own. See `or_exit`."""
    return or_exit(partial(asyncio.run, work), making=making)


def or_exit(work: Callable[[], T], *, making: Making | None = None) -> T:
    """Run some work; turn errors that a person can act on into one line and a status.

    ``making`` adds a line after an end that leaves it open whether the work is done.
    """
    try:
        return work()
    except RedisStateError as error:
        complain(error)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        _say(making, error)
        raise typer.Exit(_status_of(error)) from None
    except ValidationError as error:
        complain(setting_problem(error))
        raise typer.Exit(ExitCode.USAGE) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain("interrupted")
        _say(making, None)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def complain(problem: object) -> None:
    """Print an error to standard error, on one line that no terminal obeys."""
    print(f"redis-state: {harmless(' '.join(str(problem).splitlines()))}", file=sys.stderr)


def _say(making: Making | None, error: RedisStateError | None) -> None:
    text = None if making is None else making.after(error)
    if text is not None:
        complain(text)


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
