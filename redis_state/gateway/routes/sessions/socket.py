"""A session's updates over a WebSocket, and commands up: what POST does, with an acknowledgement.

    {"id": "7c0e…", "type": "steer", "task": "t", "body": {"type": "USER_MESSAGE", "payload": {}}}
    {"id": "1f0b…", "type": "decide", "pause": "…", "body": {"approved": true}}

A command is checked as the POST of its name is: its caller is authenticated again, with the request
that opened the socket, then come rights, rate and body. So a key that was removed, or lost a scope,
does nothing any more. What refuses the caller ends the socket.
Its ``id`` is its Idempotency-Key, so a client that connects again may send it again. Another one
under the id is refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from redis_state.errors import InvalidField
from redis_state.gateway.answers import HttpProblem, refuse
from redis_state.gateway.auth.principal import Principal
from redis_state.gateway.calls import (
    ApiCall,
    Desk,
    Operation,
    authorise,
    read_query,
    validated,
)
from redis_state.gateway.failures import problem_for
from redis_state.gateway.requests.paths import read_parts
from redis_state.gateway.requests.queries import EventsQuery
from redis_state.gateway.routes.sessions.events import begin_stream
from redis_state.gateway.routes.tasks import changes, pauses
from redis_state.gateway.streaming.websocket import EventSocket
from redis_state.serialization import codec

_PATH = "/v1/sessions/{session}/socket"
_SWITCHED = 101
# What a command is called, the place that it names, and whose operation it is.
_COMMANDS: dict[str, tuple[str, Any]] = {
    "steer": ("task", changes.steer_task),
    "cancel": ("task", changes.cancel_task),
    "decide": ("pause", pauses.decide_pause),
}
_OPERATIONS = {each.endpoint: each for each in (*changes.OPERATIONS, *pauses.OPERATIONS)}


async def follow_session(call: ApiCall) -> Response:
    """Stream the updates of a session over a WebSocket, which only `SocketRoute` opens."""
    del call
    raise HttpProblem(426, "upgrade_required", "this is a WebSocket")


OPERATION = Operation("GET", _PATH, follow_session, "Follow a session", query=EventsQuery)


class SocketRoute(BaseRoute):
    """The WebSocket of each session."""

    def __init__(self, desk: Desk) -> None:
        self.path = _PATH
        self._desk = desk

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare a WebSocket's path."""
        parts = list(read_parts(scope) or ()) if scope["type"] == "websocket" else []
        match parts:
            case ["v1", "sessions", session, "socket"]:
                return Match.FULL, {"path_params": {"session": session}}
            case _:
                return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket until its stream ends or its client leaves."""
        connection = HTTPConnection(scope)
        path = connection.path_params
        try:
            principal = await self._desk.admit(connection, OPERATION)
            authorise(OPERATION, principal, path)
            query = read_query(EventsQuery, connection)
            services = await self._desk.services()
            call = ApiCall(
                connection, services, principal, path, query, recognise=self._desk.recognise
            )
            chunks = await begin_stream(call)
        except Exception as error:  # noqa: BLE001 - each has its answer
            problem = problem_for(OPERATION.name, error)
            self._desk.count(OPERATION, problem.status)
            await refuse(problem, scope, receive, send)
            return
        self._desk.count(OPERATION, _SWITCHED)
        commands = {name: partial(self._obey, call, name) for name in _COMMANDS}
        # What may be sent as the body of the POST may be sent here.
        most_bytes = self._desk.max_message_bytes
        await EventSocket(chunks, commands, most_bytes=most_bytes)(scope, receive, send)

    async def _obey(self, stream: ApiCall, name: str, message: dict[str, Any]) -> Any:
        """Do what one message says, as its caller may now. Errors: HttpProblem."""
        place, endpoint = _COMMANDS[name]
        operation = _OPERATIONS[endpoint]
        try:
            principal = await self._desk.admit(stream.request, operation)
            call = _command(stream, operation, principal, place, message)
            authorise(operation, principal, call.path)
            answered = await operation.endpoint(call)
        except Exception as error:  # noqa: BLE001 - each has its answer
            problem = problem_for(operation.name, error)
            self._desk.count(operation, problem.status)
            raise problem from None
        self._desk.count(operation, answered.status_code)
        return codec.decode(bytes(answered.body))


def _command(
    stream: ApiCall,
    operation: Operation,
    principal: Principal,
    place: str,
    message: dict[str, Any],
) -> ApiCall:
    """Read a message as the call of an operation. Errors: HttpProblem, InvalidField."""
    unknown = sorted(message.keys() - {"id", place, "body"})
    if unknown:
        raise InvalidField(unknown[0], f"is not known: a command has id, type, {place} and body")
    target = message.get(place)
    if not isinstance(target, str):
        raise InvalidField(place, "is needed, as text")
    body = None if operation.body is None else validated(operation.body, message.get("body", {}))
    path = {**stream.path, place: target}
    return ApiCall(stream.request, stream.services, principal, path, body=body, key=message["id"])
