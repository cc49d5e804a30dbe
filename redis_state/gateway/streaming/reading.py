"""Read the hub's own events back, for what makes another stream of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis_state.serialization import codec


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """An event of a stream. ``cursor`` is that of a row; other events have none."""

    name: str
    cursor: str | None
    data: Any


def read_events(chunk: bytes) -> list[LiveEvent]:
    """Read whole events, as `redis_state.gateway.streaming.events` writes them."""
    found: list[LiveEvent] = []
    for part in chunk.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in part.split(b"\n") if b": " in line)
        if b"event" in fields and b"data" in fields:
            cursor = fields.get(b"id")
            text = None if cursor is None else cursor.decode()
            found.append(LiveEvent(fields[b"event"].decode(), text, codec.decode(fields[b"data"])))
    return found
