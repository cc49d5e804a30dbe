"""Read a stream of server-sent events as the specification says, from chunks of any size."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self, cast

_LINE = re.compile("\r\n|\r|\n")
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """One event; ``retry`` for what only says when to come back."""

    name: str
    text: str
    cursor: str | None
    retry: int | None

    @property
    def data(self) -> Any:
        """What its data says."""
        return json.loads(self.text)

    @property
    def content(self) -> Any:
        """The content of its row."""
        return self.data["content"]


class EventParser:
    """Take bytes and give events; comments are counted."""

    def __init__(self) -> None:
        self.comments = 0
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that are whole now."""
        # Our own writer ends an event with two line feeds, and a chunk ends with an event.
        whole, separator, self._rest = (self._rest + chunk).rpartition(b"\n\n")
        text = (whole + separator).decode()
        found: list[Event] = []
        fields: dict[str, list[str]] = {}
        for line in _LINE.split(text):
            if line.startswith(":"):
                self.comments += 1
            elif line:
                name, _, value = line.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
            elif fields:
                found.append(_event(fields))
                fields = {}
        return found


class Events:
    """Read a client's events from its chunks."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.parser = EventParser()
        self._chunks = chunks
        self._found: list[Event] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave."""
        await cast("Any", self._chunks).aclose()

    async def opened(self) -> None:
        """Wait for the first chunk, with which a stream has begun."""
        await self._read()

    async def take(self, count: int) -> list[Event]:
        """Return the next events that are more than advice."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._found) < count:
                assert await self._read(), f"the stream ended after {self._found}"
        taken, self._found = self._found[:count], self._found[count:]
        return taken

    async def rest(self) -> list[Event]:
        """Return what comes until the stream ends, with advice to come back."""
        events: list[Event] = []
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in self._chunks:
                events += self.parser.feed(chunk)
        return self._found + events

    async def _read(self) -> bool:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            return False
        self._found += [event for event in self.parser.feed(chunk) if event.retry is None]
        return True


async def read_events(chunks: AsyncIterator[bytes]) -> list[Event]:
    """Read a stream to its end, without advice to come back."""
    return [event for event in await Events(chunks).rest() if event.retry is None]


def _event(fields: dict[str, list[str]]) -> Event:
    retry = fields.get("retry")
    return Event(
        fields.get("event", ["message"])[-1],
        "\n".join(fields.get("data", [])),
        fields.get("id", [None])[-1],
        None if retry is None or "data" in fields else int(retry[-1]),
    )
