"""The kinds of values that stand in the fields of an agent's state.

Each kind knows three things of its values: how one is read from the wire, how one is written to
it, and which may be given. What may be given is what is read back once it was written, and equal
to it. So a value that was checked can be stored, and what was stored can be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timezone
from enum import StrEnum
from typing import Any, NoReturn, TypeVar, cast

from redis_state.agents.state.wire.frozen import FrozenMap, frozen, frozen_map, read_frozen, thawed
from redis_state.agents.state.wire.wire import Kind, Wire
from redis_state.errors import InvalidField
from redis_state.serialization.lossy import MAX_INTEGER_BITS, whole_text

W = TypeVar("W", bound=Wire)
E = TypeVar("E", bound=StrEnum)


def wrong(place: str, needed: str) -> NoReturn:
    """Refuse a value. Errors: InvalidField."""
    raise InvalidField(place, f"{needed} is needed")


def same(value: Any) -> Any:
    """Return a value as it is."""
    return value


# Scalars


def _read_text(value: Any, place: str) -> str:
    return value if isinstance(value, str) else wrong(place, "text")


def _check_text(value: Any, place: str) -> str:
    return whole_text(_read_text(value, place))


def _read_integer(value: Any, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        wrong(place, "a whole number")
    return value


def _check_integer(value: Any, place: str) -> int:
    number = int.__index__(_read_integer(value, place))
    if number.bit_length() > MAX_INTEGER_BITS:
        wrong(place, f"a whole number of up to {MAX_INTEGER_BITS} bits")
    return number


def _read_number(value: Any, place: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        wrong(place, "a number")
    return value


def _check_number(value: Any, place: str) -> float:
    number = _read_number(value, place)
    if isinstance(number, int):
        return _check_integer(number, place)
    return float.__float__(number) if math.isfinite(number) else wrong(place, "a finite number")


def _read_boolean(value: Any, place: str) -> bool:
    return value if isinstance(value, bool) else wrong(place, "true or false")


text: Kind = Kind(_read_text, same, _check_text)
integer: Kind = Kind(_read_integer, same, _check_integer)
number: Kind = Kind(_read_number, same, _check_number)
boolean: Kind = Kind(_read_boolean, same, _read_boolean)


def optional(kind: Kind) -> Kind:
    """Make a kind of which null is a value."""
    return Kind(
        lambda value, place: None if value is None else kind.read(value, place),
        lambda value: None if value is None else kind.write(value),
        lambda value, place: None if value is None else kind.check(value, place),
    )


_maybe_text = optional(text)
# Text of which the empty one means that there is none.
text_or_none: Kind = Kind(
    lambda value, place: _maybe_text.read(value, place) or None,
    same,
    lambda value, place: _maybe_text.check(value, place) or None,
)


def one_of(kind: type[E], *, unknown: E | None = None) -> Kind:
    """Make the kind of a value out of a fixed set; another text is ``unknown``, or refused."""
    members: Mapping[str, E] = {member.value: member for member in kind}

    def find(value: Any, place: str, other: E | None) -> E:
        found = members.get(_read_text(value, place), other)
        return found or wrong(place, f"one of {', '.join(members)}")

    return Kind(
        lambda value, place: find(value, place, unknown),
        lambda value: value.value,
        lambda value, place: find(value, place, None),
    )


# Moments


def _read_moment(value: Any, place: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        wrong(place, "a date and time")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def write_moment(moment: datetime) -> str:
    """Write a moment as ATOM, with its offset, and its fraction if it has one."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.isoformat()


def _check_moment(value: Any, place: str) -> datetime:
    if not isinstance(value, datetime):
        wrong(place, "a datetime")
    if value.utcoffset() is None:
        wrong(place, "a datetime with an offset from UTC")
    kept = _read_moment(write_moment(value), place)
    if kept - value:
        wrong(place, "a datetime of whole microseconds, with an offset of whole seconds")
    # On the wire a moment has an offset, and no zone whose rules it follows.
    return value if type(value) is datetime and type(value.tzinfo) is timezone else kept


moment: Kind = Kind(_read_moment, write_moment, _check_moment)
_maybe_moment = optional(moment)


def _read_lenient_moment(value: Any, place: str) -> datetime | None:
    try:
        return cast("datetime | None", _maybe_moment.read(value, place))
    except InvalidField:
        return None


# One of which the original reads a bad value as none.
lenient_moment: Kind = Kind(_read_lenient_moment, _maybe_moment.write, _maybe_moment.check)


# JSON


def _read_map(value: Any, place: str) -> FrozenMap:
    if isinstance(value, (list, tuple)):  # how the original writes a map without keys of its own
        items = cast("Sequence[Any]", value)
        value = {str(at): each for at, each in enumerate(items)}
    found: Any = read_frozen(value, place)
    return found if isinstance(found, FrozenMap) else wrong(place, "an object")


def _check_map(value: Any, place: str) -> FrozenMap:
    return frozen_map(value, place) if isinstance(value, Mapping) else wrong(place, "an object")


anything: Kind = Kind(read_frozen, thawed, frozen)
# An empty map is [] on the wire, as the original's language writes it.
mapping: Kind = Kind(_read_map, lambda value: thawed(value) if value else [], _check_map)


# What is made of others


def as_list(value: Any, place: str) -> Sequence[Any]:
    """Take a list, or an object with none but its values. Errors: InvalidField."""
    if isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value)
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, Any]", value).values())
    wrong(place, "a list")


def instance(kind: type[Any]) -> Callable[[Any, str], Any]:
    """Make the check of a part: a part was checked when it was made."""

    def check(value: Any, place: str) -> Any:
        return value if isinstance(value, kind) else wrong(place, f"{kind.__name__}")

    return check


def model(kind: type[W]) -> Kind:
    """Make the kind of a part that is an object of its own."""
    check = instance(kind)
    return Kind(
        lambda value, place: kind.of_wire(value, place=place),
        lambda value: check(value, kind.__name__).wire(),
        check,
    )


def many(kind: Kind) -> Kind:
    """Make the kind of a list."""

    def each_of(
        values: Sequence[Any], place: str, take: Callable[[Any, str], Any]
    ) -> tuple[Any, ...]:
        return tuple(take(value, f"{place}[{at}]") for at, value in enumerate(values))

    def check(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            wrong(place, "a list")
        return each_of(cast("Sequence[Any]", value), place, kind.check)

    return Kind(
        lambda value, place: each_of(as_list(value, place), place, kind.read),
        lambda value: [kind.write(each) for each in value],
        check,
    )
