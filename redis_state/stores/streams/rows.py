"""What a row of a stream is stored as, and messages of JSON in it.

A row begins with a letter: its bytes are any, and could look sealed. Sealed, letter and bytes are
one payload. A row of JSON has the messages of one append, with commas between them.
"""

from __future__ import annotations

from json import JSONDecoder
from typing import Any, Final

from redis_state.errors import CorruptState, InvalidField
from redis_state.serialization.payloads import Payloads

_CLEAR: Final = b"p"
_SPACE: Final = " \t\n\r"


def write_row(payloads: Payloads, data: bytes) -> bytes:
    """Write a row; empty for none. Errors: PayloadTooLarge."""
    if not data:
        return b""
    payloads.check_size("data", len(data))
    return payloads.seal(_CLEAR + data)


def read_row(payloads: Payloads, path: str, stored: bytes) -> bytes:
    """Read a row. Errors: PayloadUnreadable; CorruptState."""
    if not stored.startswith(_CLEAR):
        stored = payloads.open(stored, of=f"stream {path!r}", field="row")
    if not stored.startswith(_CLEAR):
        raise CorruptState(path, "a row of a stream is not one")
    return stored[1:]


def split_messages(body: bytes, *, may_be_empty: bool = False) -> list[bytes]:
    """Return the messages of a body of JSON: one, or the items of a list. Errors: InvalidField.

    Each stays as it was written.
    """
    try:
        text = body.decode()
        start = _behind_space(text, 0)
        found, end = _messages(text, start)
        behind = text[end:].strip(_SPACE)
    except (ValueError, IndexError, RecursionError):
        raise InvalidField("data", "is no JSON") from None
    if behind:
        raise InvalidField("data", "is no JSON")
    if not found and not may_be_empty:
        raise InvalidField("data", "an empty list has no message")
    return [each.encode() for each in found]


def _messages(text: str, start: int) -> tuple[list[str], int]:
    if text[start] == "[":
        return _items(text, start + 1)
    _, end = _scan(text, start)
    return [text[start:end]], end


def _items(text: str, place: int) -> tuple[list[str], int]:
    found: list[str] = []
    place = _behind_space(text, place)
    if text[place] == "]":
        return found, place + 1
    while True:
        _, end = _scan(text, place)
        found.append(text[place:end])
        place = _behind_space(text, end)
        if text[place] == "]":
            return found, place + 1
        if text[place] != ",":
            raise ValueError
        place = _behind_space(text, place + 1)


def _behind_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in _SPACE:
        place += 1
    return place


def _no_value(_: str) -> Any:
    return None


def _refuse(_: str) -> Any:
    raise ValueError


# Numbers are not read: they stay as they were written, and may have any length.
_DECODER = JSONDecoder(parse_int=_no_value, parse_float=_no_value, parse_constant=_refuse)


def _scan(text: str, place: int) -> tuple[Any, int]:
    return _DECODER.raw_decode(text, place)
