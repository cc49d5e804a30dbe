"""The SDK's EventStore on Redis: a client that reconnects gets what it missed, from any replica.

The SDK gives one event store to all sessions of a server. It names streams by the ids of requests,
which each client counts from 0. So a session has a scope here, a random text that its
clients learn as part of the ids of events only. `RedisEventStore.attach` sees to it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self, TypeAlias

import anyio
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse

from redis_state import RedisStateStore, limits
from redis_state.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    CursorGap,
    InvalidField,
    LeaseLost,
    PayloadTooLarge,
)
from redis_state.integrations.mcp.messages import MessageLog, SentMessage
from redis_state.primitives.lease import HeldLease, Leases, Renewal, new_owner
from redis_state.primitives.log.rows import Bounds
from redis_state.serialization import codec
from redis_state.serialization.fields import text
from redis_state.stores.base import ms

log: logging.Logger = logging.getLogger(__name__)

_AGAIN_S = 0.2
_PATIENCE_S = 60.0
_Unkept: TypeAlias = asyncio.Queue[JSONRPCMessage | None]
_TOO_LARGE = "The answer is too large to be kept for a client that reconnects"


@dataclass(eq=False)
class SessionScope:
    """Where the messages of one session are, and whose session it is.

    ``followers`` are the connections that follow its log here, each with its stream. They get from
    their queues what could not be kept, and None at the session's end.
    """

    name: str
    owner: str
    followers: list[tuple[StreamId, _Unkept]] = field(
        default_factory=list[tuple[StreamId, "_Unkept"]]
    )

    def end_followers(self) -> None:
        """End the connections that follow its log here."""
        for _, unkept in self.followers:
            unkept.put_nowait(None)


# Copied into the tasks of a session by the request that opens it.
SCOPE: ContextVar[SessionScope | None] = ContextVar("redis_state_mcp_session", default=None)


class RedisEventStore(EventStore):
    """The events of all sessions of one server process. Close it at the end, or use its block.

    Give it to the SDK, then attach it to the manager that the SDK has made:

        app = server.streamable_http_app(event_store=events)
        events.attach(server.session_manager)

    The newest ``max_events`` of a session are kept for ``keep`` after the last one, encrypted with
    the store's `payload_keys`. The process holds a lease of ``lease_s``: once it has run out, other
    replicas end the requests that this one was answering. A message waits for up to a minute for a
    server that cannot be reached. After that, and if it is too large, it is sent and not kept: an
    error of the SDK's router would end its session. Errors: InvalidField.
    """

    def __init__(
        self,
        store: RedisStateStore,
        *,
        max_events: int = 1000,
        keep: timedelta = timedelta(hours=1),
        lease_s: float = 15.0,
    ) -> None:
        self._base = store.base
        self._bounds = Bounds(
            limits.count("max_events", max_events), ms(limits.lifetime("keep", keep))
        )
        self._duration_ms = round(limits.seconds("lease_s", lease_s, least=0.1) * 1000)
        self._leases = Leases(self._base.scripts, keep_ms=self._bounds.ttl_ms)
        self._server = new_owner()
        self._beginning = asyncio.Lock()
        self._held: tuple[HeldLease, Renewal] | None = None
        self._taking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def begin(self) -> None:
        """Take the lease of this process. The first event does it too. Safe to repeat."""
        async with self._beginning:
            if self._held is None:
                held = await self._leases.acquire(
                    self._base.keys.mcp_server(self._server), duration_ms=self._duration_ms
                )
                if held is not None:
                    renewal = self._leases.keep(
                        held, duration_ms=self._duration_ms, on_lost=self._lost
                    )
                    self._held = held, renewal

    async def aclose(self) -> None:
        """Give the lease back: other replicas end what this one has left open. Safe to repeat."""
        taking, self._taking = self._taking, None
        if taking is not None:
            taking.cancel()
            await asyncio.wait({taking})
        if self._held is not None:
            held, renewal = self._held
            self._held = None
            renewal.stop()
            await self._leases.give_back(held)

    def attach(self, manager: StreamableHTTPSessionManager) -> None:
        """Separate the sessions of a manager, and resume here those of other replicas.

        Call it once, before the manager serves. It is behind the SDK's authentication. Errors:
        ConfigError for a manager that was made without this event store, or is attached already.
        """
        from redis_state.integrations.mcp.resuming import ResumableSessions  # noqa: PLC0415

        if manager.event_store is not self:
            raise ConfigError("this manager has another event store: give it this one first")
        if isinstance(manager.asgi_app, ResumableSessions):
            raise ConfigError("this manager is attached already")
        manager.asgi_app = ResumableSessions(self, manager)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]

    def session(self, session_id: str) -> SessionEventStore:
        """Return the event store of one session, for a transport of your own.

        With one of the SDK, what is sent while a client resumes reaches it when it resumes again:
        the transport takes over the stream some moments behind the replay. `attach` waits for both.

        Errors: InvalidField for an id that is no text, or empty.
        """
        if not text("session_id", session_id):
            raise InvalidField("session_id", "must not be empty")
        return SessionEventStore(
            self, SessionScope(codec.fingerprint("mcp session", session_id), "")
        )

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Append a message to the session of the request; return its event's id. One step.

        An empty id: the message is not kept. Errors: ConfigError without `attach`; BackendError for
        a place to resume, that is, no message.
        """
        return await self.add(_needed(), stream_id, message)

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        """Send what comes after an event in its stream, in order, until the request is answered.

        It returns None: the SDK gives a stream to a connection a while after its replay, and what
        is sent meanwhile would reach nobody. Nothing is sent for an event that is not kept, or of
        another session. Errors: ConfigError without `attach`; PayloadUnreadable, BackendError.
        """
        scope = _needed()
        last = await self._last(scope, last_event_id)
        if last is not None and last.stream is not None:
            follower = last.stream, _Unkept()
            scope.followers.append(follower)
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(_pass_on, follower[1], send_callback, group.cancel_scope)
                    await self._follow(scope, last, send_callback)
                    group.cancel_scope.cancel()
            finally:
                scope.followers.remove(follower)
        return None

    async def _follow(self, scope: SessionScope, last: SentMessage, send: EventCallback) -> None:
        try:
            async with aclosing(self.log(scope.name).follow(last.cursor, last.stream)) as found:
                async for sent in found:
                    if sent.message is not None:
                        await send(EventMessage(sent.message, sent.event_id))
                    if sent.is_last:
                        return
        except CursorGap:  # trimmed since: the client's next request for it gets a 404
            return

    async def add(
        self, scope: SessionScope, stream_id: StreamId, message: JSONRPCMessage | None
    ) -> EventId:
        """Append a message to a session's log. See `store_event`."""
        row_id = secrets.token_urlsafe(12)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _PATIENCE_S
        while True:
            try:
                if self._held is None:
                    await self.begin()
                return await self.log(scope.name).add(
                    self._server, scope.owner, stream_id, message, row_id=row_id
                )
            except (PayloadTooLarge, BackendError) as error:
                if message is None:
                    raise
                if isinstance(error, PayloadTooLarge) and isinstance(message, JSONRPCResponse):
                    large = ErrorData(code=INTERNAL_ERROR, message=_TOO_LARGE)
                    message = JSONRPCError(jsonrpc="2.0", id=message.id, error=large)
                elif not isinstance(error, BackendUnavailable) or loop.time() >= give_up_at:
                    log.warning("a message of an MCP session is not kept: %s", error)
                    for followed, unkept in scope.followers:
                        if followed == stream_id:
                            unkept.put_nowait(message)
                    return ""
                else:
                    await asyncio.sleep(_AGAIN_S)

    async def replay(
        self, scope: SessionScope, last_event_id: EventId, send: EventCallback
    ) -> StreamId | None:
        """Send what came after an event of a session in its stream, in order; return the stream."""
        last = await self._last(scope, last_event_id)
        if last is None:
            return None
        try:
            found = await self.log(scope.name).after(last.cursor, last.stream)
        except CursorGap:  # trimmed since
            return None
        for sent in found:
            if sent.message is not None:
                await send(EventMessage(sent.message, sent.event_id))
        return last.stream

    async def _last(self, scope: SessionScope, event_id: EventId) -> SentMessage | None:
        """Return an event of a session, if it is kept and its owner's."""
        last = await self.log(scope.name).find(event_id)
        return None if last is None or last.owner != scope.owner else last

    async def end(self, scope: SessionScope) -> None:
        """Note the end of a session for the replicas that follow it. Errors: BackendError."""
        await self.log(scope.name).end(self._server, scope.owner)

    def log(self, scope: str) -> MessageLog:
        """Return the log of a session's scope."""
        return MessageLog(self._base, scope, self._bounds)

    async def find(self, event_id: EventId) -> tuple[MessageLog, SentMessage] | None:
        """Return an event of any session, and that session's log; None if it is not kept."""
        scope = event_id.rpartition(".")[0]
        if not scope or not scope.isascii():
            return None
        log = self.log(scope)
        found = await log.find(event_id)
        return None if found is None else (log, found)

    async def lives(self, server: str) -> bool:
        """Return whether the server process that sent an event holds its lease."""
        return await self._leases.is_held(self._base.keys.mcp_server(server))

    @property
    def lease_s(self) -> float:
        """How long a process may be silent before it is taken for dead."""
        return self._duration_ms / 1000

    def _lost(self, lost: LeaseLost) -> None:
        """Take it again: the server has forgotten it."""
        del lost
        self._held = None
        self._taking = asyncio.get_running_loop().create_task(
            self._take_again(), name="redis_state mcp lease"
        )

    async def _take_again(self) -> None:
        while self._held is None:
            try:
                await self.begin()
            except BackendError as error:
                log.warning("the lease of an MCP server cannot be taken: %s", error)
            if self._held is None:
                await asyncio.sleep(min(_AGAIN_S, self.lease_s / 3))


class SessionEventStore(EventStore):
    """The events of one session."""

    def __init__(self, events: RedisEventStore, scope: SessionScope) -> None:
        self._events = events
        self._scope = scope

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Append a message. See `RedisEventStore.store_event`."""
        return await self._events.add(self._scope, stream_id, message)

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        """Send what came after an event in its stream, in order; return the stream's id.

        None, and nothing is sent, for an event that is not kept, or of another session. Errors:
        PayloadUnreadable, BackendError.
        """
        return await self._events.replay(self._scope, last_event_id, send_callback)


def new_scope(owner: str) -> SessionScope:
    """Return the scope of a new session, which nobody can guess."""
    return SessionScope(secrets.token_urlsafe(16), owner)


async def _pass_on(unkept: _Unkept, send: EventCallback, following: anyio.CancelScope) -> None:
    while (message := await unkept.get()) is not None:
        await send(EventMessage(message))
    following.cancel()


def _needed() -> SessionScope:
    scope = SCOPE.get()
    if scope is None:
        raise ConfigError(
            "the session of this event is not known: call RedisEventStore.attach(session_manager)"
        )
    return scope
