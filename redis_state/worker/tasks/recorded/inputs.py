"""A task's input as its record has it: given whole, or gathered until the task began."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from redis_state.serialization.payloads import Payloads


class Gathers(StrEnum):
    """How a task's input is gathered: all items in their order, or only the last one."""

    BATCH = "b"
    DEBOUNCE = "d"


def read_input(
    payloads: Payloads, fields: Mapping[str, bytes], job: Mapping[str, Any], *, of: str
) -> Any:
    """Return a task's input; one that was given whole may be `Sealed`.

    Errors: PayloadUnreadable for a gathered one, of the task that ``of`` names; ValueError,
    KeyError and their like.
    """
    kind = fields.get("gathers", b"")[:1].decode()
    if not kind:
        return job["input"]
    stored = (fields[f"item:{n}"] for n in range(1, int(fields["items"]) + 1))
    items = [payloads.need(payloads.decode(item), of=of, field="input") for item in stored]
    return items if Gathers(kind) is Gathers.BATCH else items[-1]
