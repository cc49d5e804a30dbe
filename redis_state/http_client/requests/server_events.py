"""Server-sent events, read from chunks of any size as the specification of HTML says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
# No row is as long: what never ends shall not fill the memory.
_LONGEST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. ``cursor`` is the id that the stream has at it, of this event or one before."""

    name: str
    data: bytes = field(repr=False)
    cursor: str | None


class EventReader:
    """Take chunks, and give the events that are whole.

    ``cursor`` is the id of the last whole event: the stream is read on after it. ``retry_ms`` is
    after how long to connect again, if the server has sent it.
    """

    def __init__(self, cursor: str | None = None) -> None:
        self.cursor: str | None = cursor
        self.retry_ms: int | None = None
        # What may belong to the next chunk, and the parts of the line that is not over yet. They
        # are joined once: to search all of a long line for each chunk is work by its square.
        self._held = b""
        self._parts: list[bytes] = []
        self._size = 0
        self._begun = False
        self._name, self._id = "", cursor
        self._data: list[bytes] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that a chunk completes. Errors: ValueError for one without end."""
        text = self._held + chunk
        if not self._begun:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._held = text
                return []
            self._begun, text = True, text.removeprefix(_BOM)
        # A line feed may follow in the next chunk, and belongs to this line.
        self._held = b"\r" if text.endswith(b"\r") else b""
        first, *more = _LINE_END.split(text.removesuffix(self._held))
        self._parts.append(first)
        self._size += len(first)
        if self._size > _LONGEST_BYTES:
            raise ValueError("an event has no end")
        if not more:
            return []
        *lines, rest = b"".join(self._parts), *more
        self._parts, self._size = [rest], len(rest)
        found: list[ServerEvent] = []
        for line in lines:
            event = self._line(line)
            if event is not None:
                found.append(event)
        return found

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            # A line has at least its end.
            self._data_size += len(value) + 1
            if self._data_size > _LONGEST_BYTES:
                raise ValueError("an event has no end")
        elif name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value[:9])
        return None

    def _dispatch(self) -> ServerEvent | None:
        self.cursor = self._id
        data, self._data, self._data_size = self._data, [], 0
        name, self._name = self._name or "message", ""
        return ServerEvent(name, b"\n".join(data), self.cursor) if data else None
