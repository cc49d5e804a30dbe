"""Exact JSON: what is read is equal to what was written and of the same types, or is refused.

`codec` stores the nearest form of what JSON cannot hold, which is right for a log. A state that
is resumed from must come back as it was, so here such a value is ``{"$": [kind, content]}``. An
object that has a key ``$`` of its own is written as one of kind ``dict``.

Subclasses of the built-in types come back as these (an enum of texts as its text), as from any
JSON; other objects are refused. So is what is nested deeper than 80 levels and is not plain JSON.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, TypeVar, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson

from redis_state.errors import InvalidField
from redis_state.serialization import codec
from redis_state.serialization.lossy import MAX_INTEGER_BITS, below
from redis_state.serialization.rows import ROW_VERSION, unpack

_TAG = "$"
_MARK = b'"$"'
# A level takes up to three of orjson's, and several of the interpreter's.
_MAX_DEPTH = 80
_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_UNITS = ("days", "seconds", "microseconds")


def pack(values: Mapping[str, Any]) -> bytes:
    """Write named values as a row. Errors: InvalidField names what cannot be written exactly."""
    row = [ROW_VERSION, *values.values()]
    written = _write_plain(row)
    if written is not None:
        return written
    tree = [ROW_VERSION, *(_tag(value, name, 0) for name, value in values.items())]
    written, changes = codec.encode_reporting(tree)
    if changes:
        raise InvalidField(next(iter(values)), f"cannot be stored exactly: {changes[0].kind}")
    return written


def unpack_exact(data: bytes, size: int) -> list[Any]:
    """Read a row's values. Errors: codec.DecodeError."""
    values = unpack(data, size)
    if _MARK not in data:
        return values
    try:
        return [_untag(value) for value in values]
    except (ValueError, TypeError, KeyError, ArithmeticError):
        reason = "a value of no known kind"
    raise codec.DecodeError(reason)


def _write_plain(row: list[Any]) -> bytes | None:
    """Write in C what JSON itself holds, which is nearly everything; None for the rest."""
    try:
        written = orjson.dumps(row, option=_OPTIONS)
        # orjson writes a tuple as a list and NaN as null without a word: they read back unequal.
        same = _MARK not in written and bool(orjson.loads(written) == row)
    except (TypeError, ValueError):
        return None
    return written if same else None


def _tag(value: Any, path: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        field = re.split(r"[.\[]", path, maxsplit=1)[0]
        raise InvalidField(field, "is nested too deeply, or holds itself")
    kind = cast("type[object]", type(value))
    if value is None or kind is bool:
        return value
    for family, write in _FAMILIES:
        if issubclass(kind, family):
            return write(value, path, depth + 1)
    exact = _EXACT.get(kind)
    if exact is None:
        raise InvalidField(path, f"a {kind.__name__} cannot be stored exactly")
    name, plain = exact
    try:
        return {_TAG: [name, plain(value)]}
    except _Inexact as inexact:
        raise InvalidField(path, f"a {inexact} cannot be stored exactly") from None


def _text(value: Any, _path: str, _depth: int) -> Any:
    text = str.__str__(value)
    if text.isascii():
        return text
    # Two halves of a pair would be read as one character.
    units = text.encode("utf-16-le", "surrogatepass")
    if units.decode("utf-16-le", "surrogatepass") == text:
        return text
    return {_TAG: ["text", base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()]}


def _integer(value: Any, _path: str, _depth: int) -> Any:
    number = int(value)
    if number.bit_length() <= MAX_INTEGER_BITS:
        return number
    return {_TAG: ["int", hex(number)]}


def _float(value: Any, _path: str, _depth: int) -> Any:
    number = float(value)
    return number if math.isfinite(number) else {_TAG: ["float", repr(number)]}


def _object(value: Any, path: str, depth: int) -> Any:
    entries = cast("dict[Any, Any]", value).items()
    if _TAG not in value and all(_text_is_plain(key) for key, _ in entries):
        return {key: _tag(item, below(path, key), depth) for key, item in entries}
    tagged = [
        [_tag(key, place, depth), _tag(item, place, depth)]
        for key, item in entries
        for place in (below(path, key),)
    ]
    return {_TAG: ["dict", tagged]}


def _text_is_plain(key: object) -> bool:
    return type(key) is str and isinstance(_text(key, "", 0), str)


def _items(value: Any, path: str, depth: int) -> list[Any]:
    return [_tag(item, f"{path}[{place}]", depth) for place, item in enumerate(value)]


def _group(name: str) -> Callable[[Any, str, int], Any]:
    return lambda value, path, depth: {_TAG: [name, _items(value, path, depth)]}


_FAMILIES: tuple[tuple[type[Any], Callable[[Any, str, int], Any]], ...] = (
    (str, _text),
    (int, _integer),
    (float, _float),
    (dict, _object),
    (list, _items),
    (tuple, _group("tuple")),
    (frozenset, _group("frozenset")),
    (set, _group("set")),
)


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


class _Inexact(Exception):
    """What a value holds that cannot be written."""


def _moment(value: datetime | time) -> list[Any]:
    return [value.isoformat(), value.fold, *_zone(value.tzinfo)]


def _zone(zone: tzinfo | None) -> list[Any]:
    """Write what the moment's text does not say: the zone whose rules it follows, or a name."""
    if zone is None:
        return []
    if type(zone) is ZoneInfo and zone.key:
        return [zone.key]
    if type(zone) is not timezone:
        raise _Inexact(f"time zone of type {type(zone).__name__} without a key")
    offset, name = zone.utcoffset(None), zone.tzname(None)
    own_name = None if name == timezone(offset).tzname(None) else name
    if offset and abs(offset) < timedelta(seconds=1):
        # Python writes such an offset, and reads it as UTC.
        return [None, own_name, offset // timedelta(microseconds=1)]
    return [] if own_name is None else [None, own_name]


_Moment = TypeVar("_Moment", datetime, time)


def _read_moment(read: Callable[[str], _Moment]) -> Callable[[Any], _Moment]:
    def moment(content: Any) -> _Moment:
        text, fold, *zone = content
        found = read(text).replace(fold=fold)
        return found.replace(tzinfo=_zone_of(found.utcoffset(), *zone)) if zone else found

    return moment


def _zone_of(
    offset: timedelta | None,
    key: str | None,
    name: str | None = None,
    microseconds: int | None = None,
) -> tzinfo:
    if key is not None:
        return ZoneInfo(key)
    if microseconds is not None:
        offset = timedelta(microseconds=microseconds)
    exact = cast("timedelta", offset)
    return timezone(exact) if name is None else timezone(exact, name)


_EXACT: dict[type[Any], tuple[str, Callable[[Any], Any]]] = {
    datetime: ("datetime", _moment),
    date: ("date", date.isoformat),
    time: ("time", _moment),
    timedelta: ("timedelta", lambda value: [getattr(value, unit) for unit in _UNITS]),
    bytes: ("bytes", _base64),
    bytearray: ("bytearray", _base64),
    Decimal: ("decimal", str),
    UUID: ("uuid", str),
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "text": lambda content: base64.b64decode(content).decode("utf-8", "surrogatepass"),
    "int": lambda content: int(content, 16),
    "float": float,
    "dict": lambda content: {_untag(key): _untag(item) for key, item in content},
    "tuple": lambda content: tuple(map(_untag, content)),
    "frozenset": lambda content: frozenset(map(_untag, content)),
    "set": lambda content: set(map(_untag, content)),
    "datetime": _read_moment(datetime.fromisoformat),
    "date": date.fromisoformat,
    "time": _read_moment(time.fromisoformat),
    "timedelta": lambda content: timedelta(**dict(zip(_UNITS, content, strict=True))),
    "bytes": base64.b64decode,
    "bytearray": lambda content: bytearray(base64.b64decode(content)),
    "decimal": Decimal,
    "uuid": UUID,
}


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(item) for item in cast("Sequence[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = cast("dict[str, Any]", value)
    if _TAG not in found:
        return {name: _untag(item) for name, item in found.items()}
    kind, content = found[_TAG]
    return _READERS[kind](content)
