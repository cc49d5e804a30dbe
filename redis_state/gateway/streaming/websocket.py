"""The same events over a WebSocket, and commands up, each acknowledged by its id.

A message down has one or more whole events, as text, as an event stream has them. A message up is
``{"id": …, "type": "steer", …}``. Its answer is an event: ``ack`` with ``{"id", "ok": true,
"result"}``, or ``{"id", "ok": false, "error": {"code", "message"}}`` as over HTTP. Commands of one
client run one after the other, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, cast

from redis_state.errors import InvalidField, RedisStateError
from redis_state.gateway.answers import HttpProblem, problem_of
from redis_state.gateway.failures import log_failure
from redis_state.gateway.streaming.events import EXPIRED, come_back_later, event
from redis_state.gateway.streaming.response import Message, Receive, Send
from redis_state.serialization import codec

Command: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]

# Of the ids that stand beside a command's body, written with escapes.
BESIDE_BODY_BYTES: Final = 16 << 10
_LONGEST_ID = 200
_GOING_AWAY, _REFUSED, _TOO_BIG, _FAILED = 1001, 1008, 1009, 1011
_UNAUTHENTICATED = 401


class EventSocket:
    """Serve one WebSocket: chunks of events down, commands up.

    ``commands`` names what the client may send: each gets the message without its ``type``, and
    what it returns is the acknowledgement's ``result``. The application gives them, with the rights
    of the caller. A RedisStateError or HttpProblem refuses a command. One that refuses the caller
    (401) closes the connection after that, and so does any other error. ``chunks`` that end with
    ``expired`` close it with the code 1008, and chunks that fail with 1011, after a ``retry``. A
    message of more than ``most_bytes`` closes it with 1009. ``chunks`` is closed in every case, if
    it can be.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        commands: Mapping[str, Command],
        *,
        most_bytes: int = 64 << 10,
    ) -> None:
        self._chunks = chunks
        self._commands = commands
        self._most_bytes = most_bytes
        self._closed = False

    async def __call__(self, _scope: Message, receive: Receive, send: Send) -> None:
        """Serve until the events end or the client leaves."""
        try:
            first = await anext(self._chunks, b"")
            if (await receive())["type"] != "websocket.connect":
                return
            await send({"type": "websocket.accept"})
            await _send_text(first, send)
            del first
            await self._both_ways(receive, send)
        except OSError:
            pass  # some servers say so that the client is gone
        finally:
            close = getattr(self._chunks, "aclose", None)
            if close is not None:
                await close()

    async def _both_ways(self, receive: Receive, send: Send) -> None:
        down = asyncio.create_task(self._send_events(send))
        up = asyncio.create_task(self._obey(receive, send))
        try:
            await asyncio.wait({down, up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (down, up):
                task.cancel()
            await asyncio.gather(down, up, return_exceptions=True)
        for task in (down, up):
            if not task.cancelled():
                task.result()

    async def _send_events(self, send: Send) -> None:
        code = _GOING_AWAY
        while True:
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                break
            except Exception as error:  # noqa: BLE001 - the server would log its text
                log_failure("an open WebSocket", error)
                code, chunk = _FAILED, come_back_later()
                if not self._closed:
                    await _send_text(chunk, send)
                break
            if self._closed:
                return
            code = _REFUSED if chunk == EXPIRED else _GOING_AWAY
            await _send_text(chunk, send)
            # Who waits for the next one holds none.
            del chunk
        await self._close(code, send)

    async def _close(self, code: int, send: Send) -> None:
        """Close, once: nothing may be sent after it."""
        if not self._closed:
            self._closed = True
            await send({"type": "websocket.close", "code": code})

    async def _obey(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            given: bytes = text.encode() if text is not None else message.get("bytes") or b""
            if len(given) > self._most_bytes:
                await self._close(_TOO_BIG, send)
                return
            answer, known = await self._answer(given)
            if self._closed:
                return
            await _send_text(event("ack", codec.encode(answer)), send)
            if not known:
                await self._close(_REFUSED, send)
                return

    async def _answer(self, given: bytes) -> tuple[dict[str, Any], bool]:
        """Return the acknowledgement of a command, and whether its caller is known."""
        command_id: str | None = None
        try:
            message = _read(given)
            command_id = _id_of(message)
            command = self._commands.get(str(message.pop("type", "")))
            if command is None:
                raise InvalidField("type", f"must be one of {', '.join(sorted(self._commands))}")
            result = await command(message)
        except HttpProblem as problem:
            refused = {"id": command_id, "ok": False, "error": problem.document()}
            return refused, problem.status != _UNAUTHENTICATED
        except RedisStateError as error:
            return {"id": command_id, "ok": False, "error": problem_of(error).document()}, True
        return {"id": command_id, "ok": True, "result": result}, True


def _read(given: bytes) -> dict[str, Any]:
    try:
        message = codec.decode(given)
    except codec.DecodeError:
        message = None
    if not isinstance(message, dict):
        raise InvalidField("message", "must be a JSON object")
    return cast("dict[str, Any]", message)


def _id_of(message: dict[str, Any]) -> str:
    given = message.get("id")
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_ID:
        raise InvalidField("id", f"must be text of 1 to {_LONGEST_ID} characters")
    return given


async def _send_text(chunk: bytes, send: Send) -> None:
    await send({"type": "websocket.send", "text": chunk.decode()})
