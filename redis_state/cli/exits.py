"""How a command ends: its status, and one line for what a person can act on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import typer
from pydantic import ValidationError

from redis_state.errors import BackendUnavailable, CallerError, RedisStateError

T = TypeVar("T")

FAILED = 1
USAGE = 2
UNREACHABLE = 5
INTERRUPTED = 130


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do some asynchronous work. See `or_exit`."""
    return or_exit(partial(asyncio.run, work))


def or_exit(work: Callable[[], T]) -> T:
    """Do some work; turn the errors a person can act on into one line and a status."""
    try:
        return work()
    except BackendUnavailable as error:
        complain(error)
        raise typer.Exit(UNREACHABLE) from None
    except CallerError as error:
        complain(error)
        raise typer.Exit(USAGE) from None
    except RedisStateError as error:
        complain(error)
        raise typer.Exit(FAILED) from None
    except ValidationError as error:
        # Without the values: they may be secrets.
        wrong = error.errors(include_input=False, include_url=False)
        complain("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong))
        raise typer.Exit(USAGE) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def complain(problem: object) -> None:
    """Say what is wrong, on standard error."""
    print(f"redis-state: {problem}", file=sys.stderr)
