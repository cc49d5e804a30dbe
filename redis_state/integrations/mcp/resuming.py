"""Sessions of Streamable HTTP over several replicas: whose an event is, and where it is resumed.

The SDK keeps sessions in the memory of one process. Another replica answers a client that
reconnects for what it missed, and for what the process still sends. Other requests of a session
that is not its own get the SDK's 404, after which a client opens a new session.
"""

from __future__ import annotations

import asyncio
import logging
import re
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
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.status import HTTP_200_OK
from starlette.types import Message, Receive, Scope, Send

from redis_state.errors import BackendError, CursorGap
from redis_state.integrations.mcp.events import SCOPE, SessionScope, new_scope
from redis_state.integrations.mcp.messages import MessageLog, SentMessage
from redis_state.integrations.mcp.principals import principal_of_request

if TYPE_CHECKING:
    from redis_state.integrations.mcp.events import RedisEventStore

log: logging.Logger = logging.getLogger(__name__)

_COMMENT_S = 5.0
_DIED = "The server that worked on this request died."
_OVER = "The session of this request has ended."
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")


class ResumableSessions:
    """A manager's ASGI application, with a scope for each session."""

    def __init__(self, events: RedisEventStore, manager: StreamableHTTPSessionManager) -> None:
        self._events = events
        self._app = manager.asgi_app
        self._manager = manager
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
            if (
                found is not None
                and found[1].owner == principal_of_request(scope)
                and not await _has_ended(*found)
            ):
                request = Request(scope, receive)
                refused = await self._security.validate_request(request, is_post=False)
                resumed = self._resumed(*found, session_id)
                await (refused or resumed)(scope, receive, send)
                return
        if known is not None and scope["method"] == "DELETE":
            await self._serve(known, scope, receive, self._ending(known, send))
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
                    self._record_idleness(session_id, session)
            await send(message)

        return note

    def _ending(self, session: SessionScope, send: Send) -> Send:
        """Note the end of a session before its client hears of it."""

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == HTTP_200_OK:
                await self._end(session)
            await send(message)

        return note

    def _record_idleness(self, session_id: str, session: SessionScope) -> None:
        """Note the end of a session that the SDK will end after a time without requests.

        The manager has no hook for it, and terminates a transport however its session ends. Then
        the connections that follow the session here end too. At the end of the process, which other
        replicas see by its lease, the idle scope is not cancelled.
        """
        transport = self._manager._server_instances.get(session_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if transport is None:
            return
        terminate = transport.terminate

        async def terminate_and_record() -> None:
            session.end_followers()
            await terminate()
            scope = transport.idle_scope
            if scope is not None and scope.cancel_called:
                await self._end(session)

        transport.terminate = terminate_and_record  # type: ignore[method-assign]

    async def _end(self, session: SessionScope) -> None:
        try:
            await self._events.end(session)
        except BackendError as error:
            log.warning("the end of an MCP session is not recorded: %s", error)

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
            watch = _Watch(self._events, last.server)
            why = _DIED
            try:
                while True:
                    done, _ = await asyncio.wait({coming}, timeout=every_s)
                    if done:
                        sent = watch.heard(coming.result())
                        if sent.stream is None:
                            why = _OVER
                            break
                        if sent.message is not None:
                            yield _frame(sent.message, sent.event_id)
                        if sent.is_last:
                            return
                        coming = asyncio.ensure_future(anext(found))
                        continue
                    yield ": alive\n\n"
                    if await watch.is_dead():
                        break
            except CursorGap:
                return  # trimmed since: the client's next request for it gets a 404
            finally:
                coming.cancel()
                await asyncio.wait({coming})
        if last.stream is not None and last.stream != GET_STREAM_KEY:
            yield _frame(_ended(last.stream, why), None)


class _Watch:
    """Whether the server that sent a message is dead."""

    def __init__(self, events: RedisEventStore, server: str) -> None:
        self._events = events
        self._server = server
        self._dead_since: float | None = None

    def heard(self, sent: SentMessage) -> SentMessage:
        """Note a message."""
        self._dead_since = None
        return sent

    async def is_dead(self) -> bool:
        """Return whether it has been without a lease for half of a lease's time.

        A lease also runs out while Redis stands still, or is forgotten by it. Its owner then has it
        again before that.
        """
        now = asyncio.get_running_loop().time()
        try:
            lives = await self._events.lives(self._server)
        except BackendError:
            lives = True  # nobody knows
        if lives:
            self._dead_since = None
        elif self._dead_since is None:
            self._dead_since = now
        return self._dead_since is not None and now >= self._dead_since + self._events.lease_s / 2


async def _has_ended(log: MessageLog, last: SentMessage) -> bool:
    """Return whether a session has ended, and nothing came after an event in its stream."""
    if not await log.has_ended():
        return False
    try:
        return all(each.message is None for each in await log.after(last.cursor, last.stream))
    except CursorGap:  # trimmed since
        return True


def _frame(message: JSONRPCMessage, event_id: str | None) -> str:
    named = "" if event_id is None else f"id: {event_id}\n"
    data = message.model_dump_json(by_alias=True, exclude_unset=True)
    return f"{named}event: message\ndata: {data}\n\n"


def _ended(stream: str, why: str) -> JSONRPCError:
    """Answer a request that nobody works on. Streams have the text of its id only."""
    request_id = int(stream) if _NUMBER.fullmatch(stream) else stream
    error = ErrorData(code=INTERNAL_ERROR, message=why)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
