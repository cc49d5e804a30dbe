"""What a model must hold to be written: each check names the field, and never quotes the value.

Payloads may hold anything; these are about ids, times and kinds, which rows are found and ordered
by, and which must be readable again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from numbers import Real
from typing import Any, TypeVar, cast

from redis_state.errors import InvalidField
from redis_state.serialization import codec
from redis_state.serialization.lossy import MAX_INTEGER_BITS
from redis_state.serialization.model_fields import moment_text

E = TypeVar("E", bound=Enum)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def mapping(field: str, value: object) -> dict[str, Any]:
    """Check that a value is a mapping. One that cannot be read becomes ``{"value": its form}``."""
    if not isinstance(value, Mapping):
        raise _wrong(field, "a mapping", value)
    if type(cast("object", value)) is dict:
        return cast("dict[str, Any]", value)
    tree: Any = codec.plain(value)
    return cast("dict[str, Any]", tree) if isinstance(tree, dict) else {"value": tree}


def text(field: str, value: object) -> str:
    """Check that a value is text."""
    if not isinstance(value, str):
        raise _wrong(field, "text", value)
    return value


def optional_text(field: str, value: object) -> str | None:
    """Check that a value is text or None."""
    return None if value is None else text(field, value)


def optional_whole(field: str, value: object) -> int | None:
    """Check that a value is a whole number or None."""
    if value is not None and not isinstance(value, int):
        raise _wrong(field, "a whole number", value)
    if value is not None and value.bit_length() > MAX_INTEGER_BITS:
        # It would be stored as text.
        raise InvalidField(field, f"has more than {MAX_INTEGER_BITS} bits")
    return value


def expected(field: str, value: object) -> int | None:
    """Check that a value can be the version of a document that a save expects, or is None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(field, "a version", value)
    if value < 0:
        raise InvalidField(field, "must be at least 0")
    return value


def number(field: str, value: object) -> float:
    """Return a number as a float; NaN and infinities are numbers."""
    if not isinstance(value, Real):
        raise _wrong(field, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise InvalidField(field, "is out of a float's range") from None


def moment(field: str, value: object) -> str:
    """Write a date and time with its offset, exactly."""
    if isinstance(value, datetime):
        return moment_text(value)
    raise _wrong(field, "a datetime", value)


def instant(field: str, value: object) -> int | str:
    """Write a date and time exactly: in UTC as microseconds since 1970, half as long as text."""
    if isinstance(value, datetime) and value.tzinfo is UTC:
        return (value - _EPOCH) // _MICROSECOND
    return moment(field, value)


def read_instant(stored: object) -> datetime:
    """Read what `instant` or `moment` wrote. Errors: TypeError, ValueError, OverflowError."""
    if type(stored) is int:
        return _EPOCH + timedelta(microseconds=stored)
    return datetime.fromisoformat(cast("str", stored))


def choice(field: str, value: object, kind: type[E]) -> str:
    """Write a member of an enum, or of a host's enum of the same name, as its value.

    Plain text will do if it is the value of a member of ``kind``.
    """
    if type(value) is kind:
        # ``value.value`` is a call.
        text: str = value._value_
        return text
    if isinstance(value, Enum) and type(value).__name__ == kind.__name__:
        return str(value.value)
    try:
        return str(kind(value).value)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise InvalidField(field, f"must be one of {known}") from None


def validated(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a model of what a row holds. Errors: pydantic's.

    This is what ``model_validate`` calls once it has looked at options that nobody gave, a fifth of
    its time.
    """
    return kind.__pydantic_validator__.validate_python(values)


def _wrong(field: str, needed: str, value: object) -> InvalidField:
    return InvalidField(field, f"{needed} is needed, not {type(value).__name__}")


def dumped(field: str, dump: Callable[[], Any]) -> Any:
    """Return what pydantic dumps. Errors: InvalidField if what is dumped holds what it cannot."""
    try:
        return dump()
    except ValueError as error:
        problem = type(error).__name__
    # Outside of the handler: pydantic's error may quote the value.
    raise InvalidField(field, problem)
