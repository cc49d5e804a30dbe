"""Lengths of time, and numbers of things: what may be given where one is needed.

Each check returns the value, or raises InvalidField, which names the field and never quotes what
was given. True and False are numbers to Python, and to nobody who writes them here.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeGuard, TypeVar

from redis_state.errors import ConfigError, InvalidField

T = TypeVar("T")

# The server counts in milliseconds. Nobody waits longer than this for a lease to run out.
_SHORTEST = timedelta(milliseconds=1)
_LONGEST = timedelta(days=3650)
SHORTEST_S: float = _SHORTEST.total_seconds()
LONGEST_S: float = _LONGEST.total_seconds()


def own_id(field: str, value: object) -> str | None:
    """Check an id or a key that a caller may choose: None is for none, and an empty one is none."""
    if value is None or (isinstance(value, str) and value):
        return value
    raise InvalidField(field, "must be a text that is not empty; leave it out for a new one")


def name(field: str, value: object) -> str:
    """Check what something is called by, such as a handler or a queue: text that is not empty."""
    if isinstance(value, str) and value:
        return value
    raise InvalidField(field, "needs a name")


def name_or(field: str, value: object, other: T) -> str | T:
    """Check a name that may be left out: None is the other one, and an empty text is not."""
    return other if value is None else name(field, value)


def known_options(kind: Any, given: Mapping[str, object]) -> None:
    """Refuse an option that a call does not have: one whose name is wrong would do nothing."""
    names = _options_of(kind)
    if not names.issuperset(given):
        name = min(given.keys() - names)
        raise InvalidField(name, f"is no option: {', '.join(sorted(names))}")


@cache
def _options_of(kind: Any) -> frozenset[str]:
    names: frozenset[str] = kind.__optional_keys__ | kind.__required_keys__
    return names


def count(field: str, value: object, *, least: int = 1) -> int:
    """Check a number of things."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        raise InvalidField(field, f"must be >= {least}")
    raise InvalidField(field, f"must be a whole number >= {least}")


def seconds(
    field: str, value: object, *, least: float = SHORTEST_S, most: float = LONGEST_S
) -> float:
    """Check how long something lasts, like a lease: at least a millisecond, and not for ever."""
    if _is_number(value) and least <= value <= most:
        return value
    raise InvalidField(field, f"must be a number of seconds from {least:g} to {most:.0f}")


def patience(field: str, value: object, *, least: float = 0.0) -> float:
    """Check how long a caller waits for something: not at all, or up to for ever."""
    if _is_number(value) and value >= least:
        return value
    raise InvalidField(field, f"must be a number of seconds from {least:g}")


def timeout(field: str, value: object) -> float | None:
    """Check what is left of a wait: None is for ever, and what is below 0 is over already."""
    if value is None or _is_number(value):
        return value
    raise InvalidField(field, "must be a number of seconds, or None for no limit")


def lifetime(field: str, value: object) -> timedelta:
    """Check how long something is kept: at least a millisecond, and at most ten years."""
    if isinstance(value, timedelta) and _SHORTEST <= value <= _LONGEST:
        return value
    raise InvalidField(field, "must be a timedelta from 1 millisecond to 3650 days")


@contextmanager
def options() -> Generator[None]:
    """Check options of what is being made. Errors: ConfigError instead of InvalidField."""
    try:
        yield
    except InvalidField as error:
        raise ConfigError(str(error)) from None


def _is_number(value: object) -> TypeGuard[float]:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # no clock adds it to its time
        return False
