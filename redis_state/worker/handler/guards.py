"""Guards: limits and stop signals that end a task at its checkpoints.

    AgentWorker({"research": guarded(Budget(steps=20))(research)}, guards=[Budget(seconds=600)])

A guard is called at every checkpoint of a run, with what the task has used until then. The first
reason that a guard returns ends the task as FAILED, whatever its handler does about it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from inspect import isawaitable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from redis_state import limits
from redis_state.worker.tasks.execution.inbox import Inbox
from redis_state.worker.tasks.usage import UsageMeter

P = ParamSpec("P")
R = TypeVar("R")


class TaskStopped(BaseException):
    """A guard has ended the task. Raised at the handler's next checkpoint. Let it pass.

    Not an Exception, so that a handler that handles every error does not handle this.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Spent:
    """The usage of a task until a checkpoint, with the step or the update that is about to begin.

    ``seconds`` are those of all its runs, without the time between them. ``steps`` are those that
    earlier runs recorded and this one began. ``updates`` are those that its runs published. The
    usage of a run that crashed is not counted, except for its recorded steps.
    """

    session_id: str
    task_id: str
    handler: str
    attempt: int
    seconds: float
    steps: int
    updates: int


class Guard(Protocol):
    """An object that can end a task. Many tasks may call it at once."""

    def check(self, spent: Spent, /) -> str | Awaitable[str | None] | None:
        """Return the reason why the task must end now, or None. May be a coroutine.

        An exception is the handler's own, raised at its checkpoint.
        """
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """A guard: so many seconds, steps, updates, and no more. Errors: InvalidField."""

    seconds: float | None = None
    steps: int | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        """Refuse terms that make no sense, before a task is begun under them."""
        if self.seconds is not None:
            limits.seconds("seconds", self.seconds)
        for name in ("steps", "updates"):
            if getattr(self, name) is not None:
                limits.count(name, getattr(self, name), least=0)

    def check(self, spent: Spent, /) -> str | None:
        """Return what is used up."""
        if self.seconds is not None and spent.seconds > self.seconds:
            return f"its budget of {self.seconds:g} seconds is used up"
        for name in ("steps", "updates"):
            most: int | None = getattr(self, name)
            if most is not None and getattr(spent, name) > most:
                return f"its budget of {most} {name} is used up"
        return None


class Guarded(Generic[P, R]):
    """A handler and the guards of its tasks. A call is the handler's own."""

    def __init__(self, work: Callable[P, R], guards: Sequence[Guard]) -> None:
        # First: it copies what another object of this class has.
        update_wrapper(self, work)
        self.work: Callable[P, R] = work
        self.guards: tuple[Guard, ...] = tuple(guards)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R:
        """Call the handler."""
        return self.work(*arguments, **options)

    async def release(self, store: Any) -> None:
        """Close what the handler keeps between tasks. Called when the worker stops."""
        release: Callable[[Any], Awaitable[None]] | None = getattr(self.work, "release", None)
        if release is not None:
            await release(store)


def guarded(*guards: Guard) -> Callable[[Callable[P, R]], Guarded[P, R]]:
    """Add guards to the tasks of a handler, after those of its worker."""

    def guard(work: Callable[P, R]) -> Guarded[P, R]:
        return Guarded(work, guards)

    return guard


def guards_of(handler: object) -> tuple[Guard, ...]:
    """Return a handler's own guards, the outermost first."""
    return unguarded(handler)[1]


def unguarded(handler: Any) -> tuple[Any, tuple[Guard, ...]]:
    """Return what is inside of all guards, and these, the outermost first."""
    guards: tuple[Guard, ...] = ()
    while isinstance(handler, Guarded):
        guards += handler.guards
        handler = cast("Guarded[..., Any]", handler).work
    return handler, guards


class GuardChecks:
    """The guards of one run. Called at each checkpoint, with what is about to begin there."""

    def __init__(
        self, meter: UsageMeter, guards: Sequence[Guard], inbox: Inbox, about: Spent
    ) -> None:
        self._meter = meter
        self._guards = guards
        self._inbox = inbox
        self._about = about

    def __call__(self, steps: int, updates: int) -> Awaitable[None] | None:
        """Count; return what calls each guard, None if there is no guard. Errors: TaskStopped."""
        self._meter.steps += steps
        self._meter.updates += updates
        return self._call_each() if self._guards else None

    async def _call_each(self) -> None:
        meter, about = self._meter, self._about
        spent = Spent(
            about.session_id,
            about.task_id,
            about.handler,
            about.attempt,
            seconds=meter.seconds,
            steps=meter.steps,
            updates=meter.updates,
        )
        for guard in self._guards:
            requested = guard.check(spent)
            reason = await requested if isawaitable(requested) else requested
            if reason is not None:
                stopped = TaskStopped(reason)
                self._inbox.close(stopped)
                raise stopped
