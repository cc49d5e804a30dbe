"""The nearest JSON form of any Python value: a plain tree, and the changes that it needed.

The forms:

    datetime, date, time        ISO 8601 text
    UUID, Decimal, path         text
    Enum                        its value
    pydantic model, dataclass   an object of its fields
    tuple, deque, array         a list
    set, frozenset              a list, sorted by the canonical form of its items
    bytes                       their UTF-8 text, else base64
    NaN, Infinity, -Infinity    text of that name
    integer above 2048 bits     hexadecimal text
    key that is not text        text; a taken name gets ``~2``, ``~3``, ...
    a container inside itself   "<cycle>"
    more than 254 levels        "<too deep>"
    anything else               ``str()`` of it without addresses in memory, or "<ClassName>" where
                                that fails
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID

import orjson
from pydantic import BaseModel

from redis_state.serialization.model_fields import dumped_fields

MAX_DEPTH: Final = 254  # the most that orjson writes

MAX_INTEGER_BITS: Final = 2048  # no interpreter setting forbids reading that many digits
_CYCLE: Final = "<cycle>"
_TOO_DEEP: Final = "<too deep>"
# The text of an object without one has its address, which would make equal values differ.
_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+(?=>)")
_LONGEST_NAME: Final = 40
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})

# Compact JSON holds no raw tab, so one tab anywhere says: written by the standard library,
# and only that reads it exactly. It survives being embedded in a larger document.
EXACT: Final = b"\t"


@dataclass(frozen=True, slots=True)
class Change:
    """One place where ``encode`` stored the nearest form. It never carries the value.

    ``kind`` is one of: array, bytes, cycle, dataclass, datetime, decimal, depth, enum, int, key,
    model, nan, object, path, set, surrogate, tuple, uuid.
    """

    path: str
    kind: str


def plain(value: Any) -> Any:
    """Return the plain JSON tree that ``encode`` writes; nothing is shared with it."""
    return LossyEncoder().clean(value)


def unshared(value: Any) -> Any:
    """Return a copy of the dicts and lists of a value, however deep; the rest is shared."""
    made: dict[int, Any] = {}
    # A value may be deeper than Python calls go.
    empty: list[tuple[Any, Any]] = []

    def copy_of(item: Any) -> Any:
        kind = cast("type[object]", type(item))
        if kind is not dict and kind is not list:
            return item
        if id(item) not in made:  # it may hold itself
            made[id(item)] = kind()
            empty.append((item, made[id(item)]))
        return made[id(item)]

    copied = copy_of(value)
    while empty:
        item, own = empty.pop()
        if cast("type[object]", type(item)) is list:
            own.extend(map(copy_of, item))
        else:
            own.update((name, copy_of(entry)) for name, entry in item.items())
    return copied


def text_of(value: object) -> str:
    """Return ``str(value)``, or ``<ClassName>`` for an object that cannot say it."""
    try:
        return str.__str__(str(value))
    except Exception:  # noqa: BLE001 - foreign code, any failure
        return f"<{type(value).__name__}>"


def whole_text(value: str) -> str:
    """Return a text as JSON gives it back: two halves of a surrogate pair are one character."""
    if value.isascii():
        return str.__str__(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return str.__str__(value)


def below(place: str, key: object) -> str:
    """Return an entry's name for an error: a key that is no name may be part of a payload."""
    named = type(key) is str and len(key) <= _LONGEST_NAME and key.isidentifier()
    name = key if named else f"<{type(key).__name__}>"
    return f"{place}.{name}" if place else str(name)


def write_tree(tree: Any, *, sort_keys: bool = False) -> bytes:
    """Write a plain tree as compact JSON."""
    try:
        return orjson.dumps(tree, option=orjson.OPT_SORT_KEYS if sort_keys else None)
    except TypeError:  # an integer beyond 64 bits or a lone surrogate
        text = json.dumps(tree, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False)
        return EXACT + text.encode()


class LossyEncoder:
    """Build the plain tree of one value, and note what had to give way."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.capped: bool = False
        self._trail: list[str | int] = []
        self._ancestors: set[int] = set()
        self._depth = 0

    def clean(self, value: Any) -> Any:
        """Return the plain tree of a value; what gives way is added to ``changes``."""
        original = value
        trail, recorded, depth = len(self._trail), len(self.changes), self._depth
        opened: list[Any] = []  # keeps them alive too: a reused id would look like a cycle
        try:
            while type(value) not in _LEAVES:
                if id(value) in self._ancestors:
                    return self._cap("cycle", _CYCLE)
                self._ancestors.add(id(value))
                opened.append(value)
                build = self._builder(value)
                if build is not None:
                    return build(value)
                value = self._simplify(value, steps=len(opened))
            return self._leaf(value)
        except RecursionError:
            self._return_to(trail, recorded, depth)
            return self._cap("depth", _TOO_DEEP)
        except Exception:  # noqa: BLE001 - foreign code, any failure
            self._return_to(trail, recorded, depth)
            return self._note("object", f"<{type(original).__name__}>")
        finally:
            self._ancestors.difference_update(map(id, opened))

    def _return_to(self, trail: int, recorded: int, depth: int) -> None:
        del self._trail[trail:], self.changes[recorded:]
        self._depth = depth

    def _builder(self, value: Any) -> Callable[[Any], Any] | None:
        kind = cast("type[object]", type(value))
        if kind is dict:
            return self._object
        if kind is list:
            return self._array
        return self._set if issubclass(kind, AbstractSet) else None

    def _leaf(self, value: Any) -> Any:
        kind = cast("type[object]", type(value))
        if kind is str:
            return self._string(value)
        if kind is int:
            return self._integer(value)
        return self._float(value) if kind is float else value

    def _note(self, kind: str, stored: Any) -> Any:
        self.changes.append(Change(_path(self._trail), kind))
        return stored

    def _cap(self, kind: str, stored: str) -> Any:
        self.capped = True
        return self._note(kind, stored)

    def _string(self, value: str) -> str:
        whole = whole_text(value)
        return value if whole == value else cast("str", self._note("surrogate", whole))

    def _integer(self, value: int) -> int | str:
        if value.bit_length() <= MAX_INTEGER_BITS:
            return value
        return cast("str", self._note("int", hex(value)))

    def _float(self, value: float) -> float | str:
        if math.isfinite(value):
            return value
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return cast("str", self._note("nan", name))

    def _array(self, items: Sequence[Any]) -> Any:
        if self._depth >= MAX_DEPTH:
            return self._cap("depth", _TOO_DEEP)
        self._depth += 1
        result: list[Any] = []
        for index, item in enumerate(list(items)):
            self._trail.append(index)
            result.append(self.clean(item))
            self._trail.pop()
        self._depth -= 1
        return result

    def _object(self, value: Mapping[Any, Any]) -> Any:
        if self._depth >= MAX_DEPTH:
            return self._cap("depth", _TOO_DEEP)
        self._depth += 1
        result: dict[str, Any] = {}
        entries = list(value.items())
        # Keys that are text already keep their names, wherever in the mapping they stand.
        taken = {key for key, _ in entries if type(key) is str}
        for key, item in entries:
            name = self._string(key) if type(key) is str else _key_text(key)
            if name is not key:
                name = _free_name(name, taken)
            self._trail.append(name)
            if not issubclass(type(key), str) or str.__str__(key) != name:
                self._note("key", None)
            result[name] = self.clean(item)
            self._trail.pop()
        self._depth -= 1
        return result

    def _set(self, value: AbstractSet[Any]) -> Any:
        self._note("set", None)
        cleaned = self._array(list(value))
        return cleaned if cleaned == _TOO_DEEP else sorted(cleaned, key=_sorted_form)

    def _simplify(self, value: Any, *, steps: int) -> Any:
        if steps > MAX_DEPTH:
            return self._cap("depth", _TOO_DEEP)
        kind = cast("type[object]", type(value))
        change, simpler = (
            _scalar(value, kind)
            or _basic(value, kind)
            or _unfold(value, kind)
            or ("object", _ADDRESS.sub("", text_of(value)))
        )
        return self._note(change, simpler) if change else simpler


def _scalar(value: Any, kind: type[object]) -> tuple[str, Any] | None:
    """Return the change and the text of a value that is best represented by text."""
    if issubclass(kind, date | time):
        return "datetime", value.isoformat()
    if issubclass(kind, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return "bytes", raw.decode()
        except UnicodeDecodeError:
            return "bytes", base64.b64encode(raw).decode()
    for family, name in ((UUID, "uuid"), (Decimal, "decimal"), (PurePath, "path")):
        if issubclass(kind, family):
            return name, str(value)
    return None


def _basic(value: Any, kind: type[object]) -> tuple[str, Any] | None:
    """Return the change, if any, and the value of an enum or of a built-in's subclass."""
    if issubclass(kind, Enum):
        return "enum", value.value
    if issubclass(kind, str):
        return "", str.__str__(value)
    if issubclass(kind, int):
        return "", int.__index__(value)
    if issubclass(kind, float):
        return "", float.__float__(value)
    return None


def _unfold(value: Any, kind: type[object]) -> tuple[str, Any] | None:
    """Return the change, if any, and the content, one level, of what holds other values."""
    if issubclass(kind, BaseModel):
        return "model", dumped_fields(value)
    if is_dataclass(kind):
        return "dataclass", _dataclass_fields(value)
    if issubclass(kind, Mapping):
        return "", dict(value.items())
    if issubclass(kind, list):
        return "", list(value)
    if issubclass(kind, deque | Sequence):
        return "tuple", list(value)
    unwrap = getattr(kind, "tolist", None)  # numpy and its kin
    return ("array", unwrap(value)) if callable(unwrap) else None


def _dataclass_fields(value: Any) -> dict[str, Any]:
    names = [field.name for field in fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _key_text(key: Any) -> str:
    stored = plain(key)
    return stored if isinstance(stored, str) else text_of(key)


def _free_name(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}~{number}"
    taken.add(free)
    return free


def _path(trail: Sequence[str | int]) -> str:
    parts = ["$"]
    for step in trail:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if step.isidentifier() else f"[{json.dumps(step)}]")
    return "".join(parts)


def _sorted_form(tree: Any) -> bytes:
    return write_tree(tree, sort_keys=True)
