"""The log: an id is any text, and neither ends a line nor keeps one from being written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import redis_state

PACKAGE = Path(redis_state.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
_CALL = re.compile(rf"\blog\s*\.\s*(?:{'|'.join(sorted(LEVELS))})\b")
_PLACES = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]")
# What a user may have chosen: ids, and who did something.
_CHOSEN = re.compile(r"(_id|\bactor\b.*|\bentry|\bplace)$")


def places() -> Iterator[tuple[str, str, str]]:
    """Give of each log call its place, and each argument with its conversion."""
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        # To parse a text takes a hundred times as long as to search it.
        for call in ast.walk(ast.parse(source)) if _CALL.search(source) else ():
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log"), attr=attr),
                    args=[ast.Constant(value=str(text)), *given],
                ) if attr in LEVELS:
                    found = _PLACES.findall(text.replace("%%", ""))
                    assert len(found) == len(given), f"{file}:{call.lineno}"
                    for how, what in zip(found, given, strict=True):
                        yield f"{file.relative_to(PACKAGE)}:{call.lineno}", ast.unparse(what), how
                case _:
                    pass


def test_ids_are_quoted() -> None:
    chosen = [each for each in places() if _CHOSEN.search(each[1])]
    assert len(chosen) > 40
    assert not [each for each in chosen if each[2] != "%r"]
