"""The call was wrong: nothing was sent, and the call is to be corrected."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.errors.base import RedisStateError

_NAMED_ENTRIES = 10


class CallerError(RedisStateError):
    """The call is wrong. Nothing was sent. Correct it and call again."""


class ConfigError(CallerError):
    """A setting or a server address cannot be used. The text names it."""


class InvalidField(CallerError, ValueError):
    """An argument has the wrong type or shape. ``field`` names it."""

    def __init__(self, field: str, problem: str) -> None:
        # "limit must be >= 0" is how hosts word it too, and what their callers look for.
        super().__init__(f"{field}{' ' if problem.startswith('must ') else ': '}{problem}")
        self.field = field
        self.problem = problem


class PayloadTooLarge(InvalidField):
    """A payload is larger than `max_payload_bytes`. Nothing was written.

    ``size`` is that of its JSON, in bytes, before it is encrypted.
    """

    def __init__(self, field: str, *, size: int, limit: int) -> None:
        super().__init__(field, f"has {size} bytes as JSON, and may have {limit}")
        self.size = size
        self.limit = limit


class InvalidDecision(CallerError, ValueError):
    """A value does not fit the form of its pause. Nothing was written; the pause stays open.

    ``errors`` has the first ten broken rules, each with the path in the value: ``("$.limit",
    "maximum 1000")``. ``path`` and ``rule`` are those of the first. A name in a path that the form
    does not mention is ``*``: the value itself is in no part of the error.
    """

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        broken = "; ".join(f"{path}: {rule}" for path, rule in errors)
        super().__init__(f"the value does not fit the form: {broken}")
        self.errors: list[tuple[str, str]] = list(errors)
        self.path: str = self.errors[0][0]
        self.rule: str = self.errors[0][1]


class SteeringValidationError(CallerError, ValueError):
    """A steering payload breaks the rules of its event type. ``errors`` lists every violation."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("invalid steering payload: " + "; ".join(errors))
        self.errors: list[str] = list(errors)


class MissingCapability(CallerError, TypeError):
    """A store lacks methods that a feature needs. ``missing`` names them."""

    def __init__(self, feature: str, missing: Sequence[str]) -> None:
        super().__init__(f"{feature} needs a store with {', '.join(missing)}")
        self.feature = feature
        self.missing: list[str] = list(missing)


class MemoryBudgetExceeded(CallerError, RuntimeError):
    """A turn exceeds the memory's budget, and the policy is ``error``. The turn was not added."""


class HandlerChanged(CallerError):
    """A handler did not use ``entries`` that earlier runs of the task recorded.

    It has made the new call ``called`` instead, or has ended: then ``called`` is None. A step was
    renamed, removed or added, or the handler decides differently in each run. The effects of those
    steps have happened.
    """

    def __init__(self, task_id: str, entries: Sequence[str], *, called: str | None = None) -> None:
        more = len(entries) - _NAMED_ENTRIES
        named = ", ".join(entries[:_NAMED_ENTRIES]) + (f" and {more} more" if more > 0 else "")
        did = "never used what was recorded"
        if called is not None:
            did = f"called {called} where another call is recorded"
        super().__init__(f"the handler of task {task_id!r} {did}: {named}")
        self.task_id = task_id
        self.entries: list[str] = list(entries)
        self.called = called
