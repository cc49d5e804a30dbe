"""Payloads that are not open: each as it is stored, and what a reader sees of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Self, cast

from redis_state.errors import PayloadUnreadable
from redis_state.serialization import codec

SIGN: Final = b"\r"
PART = re.compile(rb'\r"(sealed:([fco]):([^"\\]*))"')
# What a value may be taken for by a reader without keys.
_ENCRYPTED: Final = "<encrypted>"
_ELSEWHERE: Final = "<stored elsewhere>"
UNREADABLE: Final = "it is encrypted under a key that this process does not have"
NO_STORE: Final = "it is in a store of large payloads, and this process has none"


class Sealed(str):
    """A payload as it is stored, because this process cannot read it, or has not fetched it.

    To readers it is a text that says so. ``data`` is written back unchanged.
    """

    __slots__ = ("data", "is_elsewhere")

    data: bytes
    is_elsewhere: bool

    def __new__(cls, data: bytes) -> Self:
        """Make it of what is stored."""
        is_elsewhere = data.startswith(b'\r"sealed:o:')
        made = super().__new__(cls, _ELSEWHERE if is_elsewhere else _ENCRYPTED)
        made.data = data
        made.is_elsewhere = is_elsewhere
        return made

    @classmethod
    def shown_as(cls, text: str) -> Self:
        """Make one of which only the text is known, as over HTTP. It has no data."""
        return cls(b'\r"sealed:o:"' if text == _ELSEWHERE else b'\r"sealed:f:"')

    def __reduce__(self) -> tuple[type[Sealed], tuple[bytes]]:
        """Copy it with its data."""
        return Sealed, (self.data,)


def name_in(value: Sealed) -> bytes:
    """Return the name of the object in the store of claims that holds a payload."""
    found = PART.fullmatch(value.data)
    return b"" if found is None else found[3]


def restored(value: Any, left: Mapping[str, bytes]) -> Any:
    """Return a tree with `Sealed` in the place of the parts that are left."""
    if isinstance(value, str):
        return Sealed(left[value]) if value in left else value
    if codec.kind_of(value) is list:
        return [restored(item, left) for item in value]
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        return {name: restored(item, left) for name, item in found.items()}
    return value


def unreadable_of(task: Any) -> list[str]:
    """Return which of a task's result and error could not be read."""
    return [name for name in ("result", "error") if type(getattr(task, name)) is Sealed]


def need_end(task: Any, *, reader: str = "this process") -> None:
    """Check that a terminal task's result and error were read. Errors: PayloadUnreadable."""
    for name in unreadable_of(task):
        problem = NO_STORE if getattr(task, name).is_elsewhere else UNREADABLE
        problem = problem.replace("this process", reader)
        raise PayloadUnreadable(f"task {task.task_id!r}", name, problem)
