"""How a handler, or a step's work, ends otherwise than by its result or an error of its own."""

from __future__ import annotations

from types import AsyncGeneratorType, GeneratorType
from typing import Any, Self

from redis_state.errors import InvalidField
from redis_state.serialization import codec


class TaskPaused(BaseException):
    """The task is paused. The run ends here, and a later one begins at the start of the handler."""


class TaskHandedBack(Exception):
    """A handler gives its task back, because something it needs is missing. The task is PENDING
    again, its slot is free, and a later run begins at the handler's start.
    """


class Exited(Exception):
    """A handler, or the work of one of its steps, requested the end of the process.

    It gets the end of its run.
    """

    @classmethod
    def by(cls, error: BaseException) -> Self:
        """Make it of a SystemExit or a KeyboardInterrupt."""
        return cls(f"{type(error).__name__}: {codec.text_of(error)}")


def kind_of(error: BaseException) -> str:
    """Return the name of an error's class, as it was raised."""
    # The text of an exit begins with its class. One that is rehearsed has no cause.
    return str(error).partition(":")[0] if isinstance(error, Exited) else type(error).__name__


def returned(outcome: Any) -> Any:
    """Return what a handler or a step's work has returned.

    A generator is no result: nothing of it has run. Errors: InvalidField.
    """
    if isinstance(outcome, AsyncGeneratorType | GeneratorType):
        name: str = outcome.__name__
        problem = f"{name} is a generator, of which nothing has run: return a value, not yield it"
        raise InvalidField("result", problem)
    return outcome
