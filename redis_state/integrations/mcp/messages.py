"""What a server sent in one session of Streamable HTTP, as a log that any replica reads.

A row is one message, or one place from which a client may resume. Rows of all streams of a session
stand in one log, in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from mcp.server.streamable_http import EventId, StreamId
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.serialization import codec
from redis_state.stores.base import Base

# The row's id that says that a session has ended. No other row has it.
_END = "end"


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One row: which server sent it, to whom, in which stream. No message: a place to resume.

    No stream: the session's end.
    """

    event_id: EventId
    cursor: str
    server: str
    owner: str
    stream: StreamId | None
    message: JSONRPCMessage | None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows it in its stream: an answer, or the session's end."""
        return self.stream is None or isinstance(self.message, JSONRPCResponse | JSONRPCError)


class MessageLog:
    """The messages of one session."""

    def __init__(self, base: Base, scope: str, bounds: Bounds) -> None:
        self._base = base
        self._scope = scope
        self._log = Log(base.scripts, base.keys.mcp_messages(scope), bounds, announce=True)

    async def add(
        self,
        server: str,
        owner: str,
        stream: StreamId | None,
        message: JSONRPCMessage | None,
        *,
        row_id: str,
    ) -> EventId:
        """Append a message once per row's id; return the id of its event. One step.

        Errors: PayloadTooLarge, BackendError.
        """
        plain = None
        if message is not None:
            plain = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        data = self._base.payloads.write([server, owner, stream, plain], field="message")
        await self._log.add((row_id.encode(), data))
        return f"{self._scope}.{row_id}"

    async def end(self, server: str, owner: str) -> None:
        """Note that the session has ended. Safe to repeat. Errors: BackendError."""
        await self.add(server, owner, None, None, row_id=_END)

    async def has_ended(self) -> bool:
        """Return whether the session has ended."""
        return await self._log.find(_END.encode()) is not None

    async def find(self, event_id: EventId) -> SentMessage | None:
        """Return the message of an event's id; None if it is not kept, or not of this session."""
        scope, _, row_id = event_id.rpartition(".")
        if scope != self._scope or not row_id or row_id == _END or not row_id.isascii():
            return None
        row = await self._log.get(row_id.encode())
        return None if row is None else self._read(row)

    async def after(self, cursor: str, stream: StreamId | None) -> list[SentMessage]:
        """Read what was sent in a stream after a place, in order. Errors: CursorGap."""
        found: list[SentMessage] = []
        at_end = False
        while not at_end:
            page = await self._log.read(after=cursor)
            found += [sent for row in page.rows if (sent := self._read(row)).stream == stream]
            cursor, at_end = page.cursor, page.at_end
        return found

    async def follow(
        self, cursor: str, stream: StreamId | None
    ) -> AsyncGenerator[SentMessage, None]:
        """Yield what was sent in a stream after a place, and then what is to come.

        The session's end is of all streams.

        Errors: CursorGap.
        """
        async with aclosing(self._log.follow(after=cursor)) as rows:
            async for row in rows:
                sent = self._read(row)
                if sent.stream in (stream, None):
                    yield sent

    def _read(self, row: Row) -> SentMessage:
        """Read a row. One that cannot be read is no gap to step over in silence."""
        of = "an MCP session"
        data = self._base.payloads.open(row.data, of=of, field="message")
        found: Any = codec.decode(data)
        try:
            server, owner, stream, plain = found
            message = None if plain is None else jsonrpc_message_adapter.validate_python(plain)
        except (TypeError, ValueError):  # a ValidationError quotes the message
            raise codec.DecodeError("no message of an MCP session") from None
        return SentMessage(
            event_id=f"{self._scope}.{row.id.decode()}",
            cursor=row.cursor,
            server=server,
            owner=owner,
            stream=stream,
            message=message,
        )
