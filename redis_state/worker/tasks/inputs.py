"""A task's input as its record has it: given whole, or gathered until the task began."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from redis_state.serialization import codec


class Gathers(StrEnum):
    """How a task's input is gathered: all items in their order, or only the last one."""

    BATCH = "b"
    DEBOUNCE = "d"


def read_input(fields: Mapping[str, bytes], job: Mapping[str, Any]) -> Any:
    """Return a task's input. Errors: ValueError, KeyError and their like."""
    kind = fields.get("gathers", b"")[:1].decode()
    if not kind:
        return job["input"]
    items = [codec.decode(fields[f"item:{n}"]) for n in range(1, int(fields["items"]) + 1)]
    return items if Gathers(kind) is Gathers.BATCH else items[-1]
