"""Filters of searches, as LangGraph's own stores compare: equal, nested, or by an operator."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from redis_state.errors import InvalidField

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Return whether a value has what a filter wants. Errors: InvalidField for an operator."""
    return all(_compare(value.get(name), each) for name, each in (wanted or {}).items())


def _compare(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        parts = cast("dict[str, Any]", wanted)
        if any(name.startswith("$") for name in parts):
            return all(_operate(value, name, each) for name, each in parts.items())
        return isinstance(value, dict) and matches(cast("dict[str, Any]", value), parts)
    if isinstance(wanted, (list, tuple)):
        items, given = cast("list[Any]", value), cast("Sequence[Any]", wanted)
        same = isinstance(value, list) and len(items) == len(given)
        return same and all(map(_compare, items, given))
    return bool(value == wanted)


def _operate(value: Any, name: str, wanted: Any) -> bool:
    if name not in _OPERATORS:
        raise InvalidField("filter", f"{name!r} is none of {', '.join(_OPERATORS)}")
    try:
        return _OPERATORS[name](value, wanted)
    except TypeError:
        # Values of two kinds have no order.
        return False
