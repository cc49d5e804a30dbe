"""Tolerant JSON for storage: everything can be written, plain JSON comes back exactly.

What JSON cannot hold is stored as its nearest form, see `redis_state.serialization.lossy`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NoReturn, cast

import orjson

from redis_state.serialization.lossy import (
    EXACT,
    MAX_DEPTH,
    Change,
    LossyEncoder,
    plain,
    text_of,
    write_tree,
)
from redis_state.serialization.model_fields import fields_of

__all__ = [
    "MAX_DEPTH",
    "Change",
    "DecodeError",
    "canonical",
    "decode",
    "encode",
    "encode_reporting",
    "fields_of",
    "fingerprint",
    "plain",
    "text_of",
]


_NULL: Final = b"null"
# Type checkers conclude from `type(value) is dict` that what it holds is unknown.
kind_of: Callable[[Any], object] = cast("Any", type)

_OPTIONS: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS  # orjson drops fields with a leading underscore
    | orjson.OPT_PASSTHROUGH_DATETIME  # orjson rounds offsets to minutes
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


class DecodeError(ValueError):
    """The bytes are not JSON. ``reason`` says why, without quoting them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def reason_of(error: Exception) -> str:
    """Return why something could not be read, without quoting it: else the kind of the error."""
    # The text of a validation error quotes the payload.
    return str(error) if isinstance(error, DecodeError) else type(error).__name__


def encode(value: Any) -> bytes:
    """Write ``value`` as compact JSON. Never raises; see `redis_state.serialization.lossy`."""
    if value is None:
        return _NULL
    written = _write_fast(value, _OPTIONS)
    return write_tree(plain(value)) if written is None else written


def encode_reporting(value: Any) -> tuple[bytes, list[Change]]:
    """Encode like ``encode`` and list every place that is not read back unchanged."""
    written = _write_fast(value, _OPTIONS)
    if written is not None and _is_plain(value):
        return written, []
    cleaner = LossyEncoder()
    tree = cleaner.clean(value)
    return (write_tree(tree) if written is None else written), cleaner.changes


def decode(data: bytes | str) -> Any:
    """Read what ``encode`` wrote. Raises ``DecodeError``.

    Integers beyond 64 bits are exact in documents of ``encode``; in documents of other writers
    they may come back as floats.
    """
    if data == _NULL:
        return None
    exact = ("\t" in data) if isinstance(data, str) else (EXACT in data)
    if not exact:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass  # a lone surrogate, which only the standard library reads, or no JSON at all
    reason = ""
    try:
        return _read_exact(data)
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except json.JSONDecodeError as error:
        reason = f"not JSON at character {error.pos}"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError:
        reason = "a number that JSON does not have"
    # Outside of the handler: the parser's error keeps the whole document as an attribute.
    raise DecodeError(reason)


def canonical(value: Any) -> bytes:
    """Write ``value`` with sorted keys: equal for everything that is stored alike."""
    written = _write_fast(value, _OPTIONS | orjson.OPT_SORT_KEYS)
    return write_tree(plain(value), sort_keys=True) if written is None else written


def fingerprint(*parts: Any) -> str:
    """Return a digest of ``parts``: 22 URL-safe characters, 128 bits of SHA-256."""
    digest = hashlib.sha256(canonical(list(parts))).digest()
    return base64.urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()


def _write_fast(value: Any, options: int) -> bytes | None:
    try:
        written = orjson.dumps(value, default=_clean_foreign, option=options)
    except TypeError:
        return None
    # orjson writes NaN as null without a word.
    nulls = written.count(_NULL)
    if nulls == 0 or _are_none(nulls, value):
        return written
    return written if _reads_back(written, value) or not _hides_non_finite(value) else None


def _are_none(nulls: int, value: Any) -> bool:
    """Return whether a list or dict, and the dicts in it, have as many None as were written null.

    Most values have no other. So many and no more: each None is written as one.
    """
    # Not by ``count``: it asks every other item whether it equals None.
    kind = kind_of(value)
    for item in value if kind is list else value.values() if kind is dict else ():
        if item is None:
            nulls -= 1
        elif kind_of(item) is dict:
            for inner in item.values():
                if inner is None:
                    nulls -= 1
        if nulls == 0:
            return True
    return False


def _reads_back(written: bytes, value: Any) -> bool:
    """Return, fast in C, whether nothing is hidden; most values are plain. False proves nothing."""
    try:
        return bool(orjson.loads(written) == value)
    except Exception:  # noqa: BLE001 - a foreign comparison, any failure
        return False


def _clean_foreign(value: Any) -> Any:
    cleaner = LossyEncoder()
    tree = cleaner.clean(value)
    if cleaner.capped:
        msg = "a cycle or a limit, which only the walk from the top places rightly"
        raise TypeError(msg)
    return tree


def _hides_non_finite(value: Any) -> bool:
    """Return whether orjson met a NaN or an infinity itself. What went to the hook is clean."""
    pending = [value]
    while pending:
        item = pending.pop()
        kind = cast("type[object]", type(item))
        if kind is float:
            if not math.isfinite(item):
                return True
        elif kind is dict:
            pending.extend(item.values())
        elif kind is list or kind is tuple:
            pending.extend(item)
        elif issubclass(kind, Enum):
            pending.append(item.value)
    return False


def _is_plain(value: Any) -> bool:
    """Return whether a value that orjson could write will be read back just as it is."""
    pending = [value]
    while pending:
        item = pending.pop()
        kind = cast("type[object]", type(item))
        if kind is dict:
            pending.extend(item.values())
        elif kind is list:
            pending.extend(item)
        elif item is not None and kind not in (str, int, float, bool):
            return False
    return True


def _read_exact(data: bytes | str) -> Any:
    text = data if isinstance(data, str) else data.decode()
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError
    return value
