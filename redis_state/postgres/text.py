"""Any text as PostgreSQL takes it: no NUL, no lone surrogate; and ids that an index takes."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

# An index takes no more than some 2,700 bytes of all its columns.
_LONGEST_ID = 400
_START = 50
_ESCAPED = re.compile(r"\\(\\|u([0-9a-f]{4}))")


def plain_text(value: str) -> str:
    """Write any text as one that a database takes: without NUL, without lone surrogates.

    A backslash is written twice, so no two texts are written alike.
    """
    if value.isascii() and value.isprintable() and "\\" not in value:
        return value
    return "".join(_sign(sign) for sign in value)


def id_text(value: str) -> str:
    """Write an id as a column has it: itself, or the start and the digest of a long one."""
    text = plain_text(value)
    if len(text.encode()) <= _LONGEST_ID:
        return text
    # No text that was not shortened has this sign behind a backslash.
    return f"{plain_text(value[:_START])}\\~{hashlib.sha256(text.encode()).hexdigest()}"


def long_ids(*ids: str) -> str | None:
    """Write ids as JSON if any is shortened in its column, else None."""
    if all("\\~" not in id_text(each) for each in ids):
        return None
    return json.dumps([plain_text(each) for each in ids])


def id_of(column: str, whole: Any, place: int) -> str:
    """Read an id from its column, or from all ids of a row that has a long one."""
    return text_of(column if whole is None else str(whole[place]))


def text_of(column: str) -> str:
    """Read what `plain_text` wrote."""
    return _ESCAPED.sub(_unescaped, column)


def _sign(sign: str) -> str:
    if sign == "\\":
        return "\\\\"
    if sign == "\0" or "\ud800" <= sign <= "\udfff":
        return f"\\u{ord(sign):04x}"
    return sign


def _unescaped(found: re.Match[str]) -> str:
    return "\\" if found.group(2) is None else chr(int(found.group(2), 16))
