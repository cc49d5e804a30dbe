"""The shared parts of flows and planners as tasks of the worker pool. Needs the extra ``worker``.

A tool or a node finds its task by its trace. Work that must not be repeated stands in the task's
`keyed_step`, or under `once`.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from inspect import isawaitable
from typing import Any, TypeVar, cast

from penguiflow.types import Message

from redis_state.errors import BackendError, InvalidField, LostRace
from redis_state.errors.groups import found_in
from redis_state.integrations.penguiflow.state import TYPES, PenguiflowStateStore
from redis_state.serialization import codec
from redis_state.settings import Settings
from redis_state.worker import TaskContext, TaskHandedBack

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

# How long a claimed pause can be resumed again by the task that claimed it, at least.
_CLAIMED = timedelta(days=1)

_RUNNING: dict[str, TaskContext] = {}


class Interrupted(BaseException):
    """The run cannot continue. ``cause`` is the reason.

    Not an Exception, so that neither a planner nor a node treats it as a failure of a tool.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(type(cause).__name__)
        self.cause: Exception = cause


@contextmanager
def interruptible() -> Generator[None]:
    """Raise Interrupted for trouble with the server and a lost lease, also in a group of errors."""
    try:
        yield
    except Exception as error:
        cause = found_in(error, BackendError, LostRace)
        if cause is None:
            raise
        raise Interrupted(cause) from error


def trace_of(ctx: TaskContext) -> str:
    """Return a task's trace: the one it was submitted with, else ``job-`` and its id."""
    return ctx.task.trace_id or f"job-{ctx.task.task_id}"


def task_of(where: Any) -> TaskContext:
    """Return the task that a tool's context, a node's message, or a trace belongs to.

    Errors: InvalidField if no task of this process has that trace.
    """
    found = _RUNNING.get(_trace_in(where) or "")
    if found is None:
        raise InvalidField("where", "belongs to no task that runs here")
    return found


def once(tool: F) -> F:
    """Run a tool once for the same arguments between two pauses of a task.

    Place it below ``@tool``. A run that begins again, after a crash or a hand-off, gets the
    recorded result. A crash between the work and its record repeats the work: give effects outside
    ``task_of(ctx).effect_id()``, which is the same then. Outside of a task the tool is called
    directly.
    """

    @functools.wraps(tool)
    async def done_once(arguments: Any, context: Any) -> Any:
        task = _RUNNING.get(_trace_in(context) or "")
        if task is None:
            return await tool(arguments, context)
        key = codec.fingerprint(arguments)
        with interruptible():
            return await task.keyed_step(tool.__name__, key, tool, arguments, context)

    return done_once  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@contextmanager
def running(ctx: TaskContext) -> Generator[str]:
    """Make `task_of` find a task by its trace for the length of the block.

    Errors: InvalidField if another task of this process has that trace already; TaskHandedBack if
    an earlier run of this task has not ended here.
    """
    trace_id = trace_of(ctx)
    other = _RUNNING.get(trace_id)
    if other is not None:
        if _name_of(other) == _name_of(ctx):
            # It lost its lease, or ran out of time, and does not stop. Its tools ask for the trace.
            raise TaskHandedBack("an earlier run of this task has not ended in this worker")
        raise InvalidField("trace_id", "another task with it runs here: give each its own")
    _RUNNING[trace_id] = ctx
    try:
        yield trace_id
    except Interrupted as interrupted:
        raise interrupted.cause from None
    finally:
        del _RUNNING[trace_id]


def make_store(settings: Settings, *, pause_lives: timedelta | None = None) -> PenguiflowStateStore:
    """Make a store of PenguiFlow's classes, of its own connections, for one job or a kept flow.

    A planner's pause lives at least as long as the task may wait for its decision.
    """
    longer = {
        "pause_ttl": max(settings.pause_ttl, pause_lives or settings.pause_ttl),
        "resolved_token_ttl": max(settings.resolved_token_ttl, _CLAIMED),
    }
    return PenguiflowStateStore(settings.model_copy(update=longer), types=TYPES)


@asynccontextmanager
async def job_store(
    ctx: TaskContext, *, pause_lives: timedelta | None = None
) -> AsyncGenerator[PenguiflowStateStore]:
    """Give one job a store. At the end what was saved without waiting has been written."""
    async with make_store(ctx.store.settings, pause_lives=pause_lives) as store:
        yield store


async def built(made: T | Awaitable[T]) -> T:
    """Return what a factory made, whether it is a coroutine function or not."""
    if isawaitable(made):
        return await cast("Awaitable[T]", made)
    return made


def _name_of(ctx: TaskContext) -> tuple[str, str]:
    return ctx.task.session_id, ctx.task.task_id


def _trace_in(where: Any) -> str | None:
    if isinstance(where, str):
        return where
    if isinstance(where, Message):
        trace_id: str = where.trace_id
        return trace_id
    try:
        found = where.tool_context.get("trace_id")
    except AttributeError:
        return None
    return found if isinstance(found, str) else None


__all__ = ["Interrupted", "job_store", "once", "running", "task_of", "trace_of"]
