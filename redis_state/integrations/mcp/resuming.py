"""Sessions of Streamable HTTP over several replicas: whose an event is, and where it is resumed.

The SDK keeps sessions in the memory of one process. Another replica answers a client that
reconnects for what it missed, and for what the process still sends. Other requests of a session
that is not its own get the SDK's 404, after which a client opens a new session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    LAST_EVENT_ID_HEADER,
    MCP_SESSION_ID_HEADER,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from redis_state.errors import CursorGap
from redis_state.integrations.mcp.events import SCOPE, SessionScope, new_scope
from redis_state.integrations.mcp.messages import MessageLog, SentMessage
from redis_state.integrations.mcp.principals import principal_of_request

if TYPE_CHECKING:
    from redis_state.integrations.mcp.events import RedisEventStore

_COMMENT_S = 5.0
_DIED = "The server that worked on this request died."


class ResumableSessions:
    """A manager's ASGI application, with a scope for each session."""

    def __init__(self, events: RedisEventStore, manager: StreamableHTTPSessionManager) -> None:
        self._events = events
        self._app = manager.asgi_app
        self._security = TransportSecurityMiddleware(manager.security_settings)
        self._retry_ms = manager.retry_interval
        # A scope is in the context of its session's tasks, and leaves with them.
        self._scopes: WeakValueDictionary[str, SessionScope] = WeakValueDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request in the scope of its session."""
        headers = Headers(scope=scope)
        session_id = headers.get(MCP_SESSION_ID_HEADER)
        if session_id is None:
            opened = new_scope(principal_of_request(scope))
            await self._serve(opened, scope, receive, self._learning(opened, send))
            return
        known = self._scopes.get(session_id)
        last_event_id = headers.get(LAST_EVENT_ID_HEADER)
        if known is None and scope["method"] == "GET" and last_event_id:
            found = await self._events.find(last_event_id)
            if found is not None and found[1].owner == principal_of_request(scope):
                request = Request(scope, receive)
                refused = await self._security.validate_request(request, is_post=False)
                resumed = self._resumed(*found, session_id)
                await (refused or resumed)(scope, receive, send)
                return
        await self._serve(known, scope, receive, send)

    async def _serve(
        self, session: SessionScope | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        token = SCOPE.set(session)
        try:
            await self._app(scope, receive, send)
        finally:
            SCOPE.reset(token)

    def _learning(self, session: SessionScope, send: Send) -> Send:
        """Note the id of the session that a response opens."""

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                session_id = Headers(raw=list(message.get("headers", ()))).get(
                    MCP_SESSION_ID_HEADER
                )
                if session_id is not None:
                    self._scopes[session_id] = session
            await send(message)

        return note

    def _resumed(self, log: MessageLog, last: SentMessage, session_id: str) -> Response:
        """Answer with what came after an event of a session that is not of this process."""
        return StreamingResponse(
            self._frames(log, last),
            media_type="text/event-stream",
            headers={
                "Cache-Control": "no-cache, no-transform",
                MCP_SESSION_ID_HEADER: session_id,
            },
        )

    async def _frames(self, log: MessageLog, last: SentMessage) -> AsyncGenerator[str, None]:
        """Yield the events after one, until the answer to the request, or its server's death."""
        if self._retry_ms is not None:
            yield f"retry: {self._retry_ms}\n\n"
        every_s = min(_COMMENT_S, self._events.lease_s)
        async with aclosing(log.follow(last.cursor, last.stream)) as found:
            coming = asyncio.ensure_future(anext(found))
            seen_dead = False
            try:
                while True:
                    done, _ = await asyncio.wait({coming}, timeout=every_s)
                    if done:
                        sent, seen_dead = coming.result(), False
                        if sent.message is not None:
                            yield _frame(sent.message, sent.event_id)
                        if isinstance(sent.message, JSONRPCResponse | JSONRPCError):
                            return
                        coming = asyncio.ensure_future(anext(found))
                        continue
                    yield ": alive\n\n"
                    # Twice, because a lease also runs out while the Redis server stands still.
                    if not await self._events.lives(last.server):
                        if seen_dead:
                            break
                        seen_dead = True
                    else:
                        seen_dead = False
            except CursorGap:
                return  # trimmed since: the client's next request for it gets a 404
            finally:
                coming.cancel()
                await asyncio.wait({coming})
        if last.stream != GET_STREAM_KEY:
            yield _frame(_ended(last.stream), None)


def _frame(message: JSONRPCMessage, event_id: str | None) -> str:
    named = "" if event_id is None else f"id: {event_id}\n"
    data = message.model_dump_json(by_alias=True, exclude_unset=True)
    return f"{named}event: message\ndata: {data}\n\n"


def _ended(stream: str) -> JSONRPCError:
    """Answer a request whose server is dead. Streams have the text of its id only."""
    request_id = int(stream) if stream.isascii() and stream.isdigit() else stream
    error = ErrorData(code=INTERNAL_ERROR, message=_DIED)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
