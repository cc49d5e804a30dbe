"""Immutable JSON values: the maps and lists of an agent's state.

A value is copied when it is given, all the way down. Later changes of the original have no effect,
and the stored value equals the one in memory:

    text, true, false, null, numbers    unchanged; two halves of a surrogate pair are one character
    enum of texts or of numbers         its value
    mapping with keys of text           `FrozenMap`
    list, tuple                         `FrozenList`

Any other value is refused, with its place: JSON cannot represent it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from redis_state.errors import InvalidField
from redis_state.serialization.lossy import MAX_INTEGER_BITS, below, whole_text

# A document holds up to 254 levels. The places of the state above a value take some of them.
MOST_LEVELS = 200
# What JSON text was read to is as deep as its reader allows.
_READ_LEVELS = 1_000
_TOO_DEEP = "is nested too deeply, or holds itself"


class FrozenMap(dict[str, Any]):
    """A map of JSON values that cannot be changed, and neither can what it holds.

    Errors: InvalidField names the key of what JSON does not have.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        values: dict[Any, Any] = dict(*given, **named)
        super().__init__(_named(values, "", MOST_LEVELS))

    def to_dict(self) -> dict[str, Any]:
        """Return a copy in plain dicts and lists, to be changed at will."""
        return {name: thawed(value) for name, value in self.items()}

    def __setitem__(self, *_: Any) -> NoReturn:
        _refuse()

    def __delitem__(self, _: Any) -> NoReturn:
        _refuse()

    def __ior__(self, _: Any) -> NoReturn:  # type: ignore[misc]
        _refuse()

    def clear(self) -> NoReturn:
        """Refuse."""
        _refuse()

    def pop(self, *_: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def popitem(self) -> NoReturn:
        """Refuse."""
        _refuse()

    def setdefault(self, *_: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def update(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def __deepcopy__(self, _: Any) -> FrozenMap:
        return self  # pydantic copies each default

    def __reduce__(self) -> tuple[type[FrozenMap], tuple[dict[str, Any]]]:
        return FrozenMap, (dict(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        given = handler(dict[Any, Any])
        return core_schema.no_info_after_validator_function(cls, given)


class FrozenList(list[Any]):
    """A list of JSON values that cannot be changed, and neither can what it holds."""

    def __init__(self, given: Iterable[Any] = ()) -> None:
        super().__init__(_listed(list(given), "", MOST_LEVELS))

    def __setitem__(self, *_: Any) -> NoReturn:
        _refuse()

    def __delitem__(self, _: Any) -> NoReturn:
        _refuse()

    def __iadd__(self, _: Any) -> NoReturn:  # type: ignore[misc]
        _refuse()

    def __imul__(self, _: Any) -> NoReturn:  # type: ignore[misc]
        _refuse()

    def append(self, _: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def clear(self) -> NoReturn:
        """Refuse."""
        _refuse()

    def extend(self, _: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def insert(self, *_: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def pop(self, *_: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def remove(self, _: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def reverse(self) -> NoReturn:
        """Refuse."""
        _refuse()

    def sort(self, **_: Any) -> NoReturn:
        """Refuse."""
        _refuse()

    def __deepcopy__(self, _: Any) -> FrozenList:
        return self

    def __reduce__(self) -> tuple[type[FrozenList], tuple[list[Any]]]:
        return FrozenList, (list(self),)


def _refuse() -> NoReturn:
    raise TypeError("an agent's state is never changed in place: use its with_* methods")


def frozen(value: Any, place: str, *, levels: int = MOST_LEVELS) -> Any:
    """Return a JSON value as one that cannot be changed, and that shares nothing with it.

    Errors: InvalidField names the place of what JSON does not have.
    """
    try:
        return _frozen(value, levels)
    except _NotJson as refused:
        raise refused.at(place) from None
    except RecursionError:
        raise InvalidField(place or "value", _TOO_DEEP) from None


def frozen_map(value: Any, place: str) -> FrozenMap:
    """Return a mapping as a `FrozenMap`. Errors: as `frozen`."""
    if type(value) is FrozenMap:
        return value
    return _map_of(_named(value, place, MOST_LEVELS))


def read_frozen(value: Any, place: str) -> Any:
    """Freeze what JSON text was read to, however deep its reader found it to be."""
    return frozen(value, place, levels=_READ_LEVELS)


def thawed(value: Any) -> Any:
    """Return a copy of a JSON value in plain dicts and lists."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: thawed(inner) for name, inner in items}
    if isinstance(value, (list, tuple)):
        return [thawed(inner) for inner in cast("Sequence[Any]", value)]
    return value


class _NotJson(Exception):
    """What JSON does not have; ``trail`` leads to it, the innermost first."""

    def __init__(self, problem: str, *trail: str | int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.trail = list(trail)

    def at(self, place: str) -> InvalidField:
        for step in reversed(self.trail):
            place = f"{place}[{step}]" if isinstance(step, int) else below(place, step)
        return InvalidField(place or "value", self.problem)


def _frozen(value: Any, levels: int) -> Any:
    kind = cast("type[object]", type(value))
    if value is None or kind is bool or kind is FrozenMap or kind is FrozenList:
        return value
    if issubclass(kind, str):
        return whole_text(value)
    if issubclass(kind, int):
        return _integer(value)
    if issubclass(kind, float):
        return _float(value)
    if levels == 0:
        raise _NotJson(_TOO_DEEP)
    if issubclass(kind, (list, tuple)):
        made = FrozenList.__new__(FrozenList)
        list[Any].__init__(made, _items(value, levels))
        return made
    if issubclass(kind, (dict, Mapping)):
        return _map_of(_entries(value, levels))
    raise _NotJson(f"JSON has no {kind.__name__}")


def _named(values: Mapping[Any, Any], place: str, levels: int) -> dict[str, Any]:
    try:
        return _entries(values, levels)
    except _NotJson as refused:
        raise refused.at(place) from None


def _listed(values: Sequence[Any], place: str, levels: int) -> list[Any]:
    try:
        return _items(values, levels)
    except _NotJson as refused:
        raise refused.at(place) from None


def _map_of(entries: dict[str, Any]) -> FrozenMap:
    made = FrozenMap.__new__(FrozenMap)
    dict[str, Any].update(made, entries)
    return made


def _entries(values: Mapping[Any, Any], levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise _NotJson(f"a key is text, not {type(key).__name__}")
        name = whole_text(key)
        if name in made:
            raise _NotJson("two keys are the same text", name)
        try:
            made[name] = _frozen(value, levels - 1)
        except _NotJson as refused:
            refused.trail.append(name)
            raise
    return made


def _items(values: Sequence[Any], levels: int) -> list[Any]:
    made: list[Any] = []
    for value in values:
        try:
            made.append(_frozen(value, levels - 1))
        except _NotJson as refused:
            refused.trail.append(len(made))
            raise
    return made


def _integer(value: int) -> int:
    if value.bit_length() > MAX_INTEGER_BITS:
        raise _NotJson(f"a whole number has up to {MAX_INTEGER_BITS} bits")
    return int.__index__(value)


def _float(value: float) -> float:
    if not math.isfinite(value):
        raise _NotJson("JSON has no NaN and no infinity")
    return float.__float__(value)


EMPTY = FrozenMap()
