"""What the work of a step or a handler comes to: a value, or an error that the worker survives."""

from __future__ import annotations

from inspect import isasyncgen, isgenerator
from typing import Any

from redis_state.errors import InvalidField
from redis_state.serialization import codec


class Exited(Exception):
    """A handler, or a step, requested the end of the process. It gets the end of its run."""

    @classmethod
    def of(cls, error: BaseException) -> Exited:
        """Make it of what was raised."""
        return cls(f"{type(error).__name__}: {codec.text_of(error)}")


def checked(field: str, outcome: Any) -> Any:
    """Return what some work returned. Errors: InvalidField for a generator: none of it has run."""
    if isgenerator(outcome) or isasyncgen(outcome):
        raise InvalidField(field, "yields, so nothing of it has run: return a value instead")
    return outcome
