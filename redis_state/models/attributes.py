"""Attributes of tasks: small facts by which tasks are found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from redis_state.errors import InvalidField

AttributeValue: TypeAlias = str | int | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]

MOST_ATTRIBUTES = 16
_LONGEST_BYTES = 256
_LARGEST = 2**63
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_attributes(field: str, given: Any) -> dict[str, AttributeValue]:
    """Return attributes of a task: at most 16, by names of letters, digits and ``_.-``.

    A value is text of at most 256 bytes, an int of 64 bits or a bool. Errors: InvalidField.
    """
    if not isinstance(given, Mapping):
        raise InvalidField(field, f"a mapping is needed, not {type(given).__name__}")
    attributes: Mapping[Any, Any] = given  # pyright: ignore[reportUnknownVariableType]
    if len(attributes) > MOST_ATTRIBUTES:
        raise InvalidField(field, f"must be at most {MOST_ATTRIBUTES}, not {len(attributes)}")
    return {_name(field, name): _value(field, name, attributes[name]) for name in attributes}


def read_attributes(field: str, given: Iterable[str]) -> dict[str, Any]:
    """Read attributes as people write them: each is NAME=VALUE, a number or a bool as in JSON.

    They are not checked. Errors: InvalidField.
    """
    attributes: dict[str, Any] = {}
    for each in given:
        name, sign, text = each.partition("=")
        if not sign:
            raise InvalidField(field, "is of the form NAME=VALUE")
        attributes[name] = _stated(text)
    return attributes


def _stated(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str | int) else text


def _name(field: str, name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidField(field, "a name needs 1 to 64 of the signs A-Z a-z 0-9 _ . -")
    return name


def _value(field: str, name: str, value: Any) -> AttributeValue:
    if type(value) is str and len(value.encode("utf-8", "surrogatepass")) <= _LONGEST_BYTES:
        return value
    if type(value) is bool or (type(value) is int and -_LARGEST <= value < _LARGEST):
        return value
    raise InvalidField(
        f"{field}[{name!r}]",
        f"text of at most {_LONGEST_BYTES} bytes, an int of 64 bits or a bool is needed",
    )
