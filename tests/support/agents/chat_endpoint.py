"""A chat-completions endpoint on the loopback, which answers as it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is none."""

    status: int
    body: str = "{}"
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Hangup:
    """The connection is closed without an answer."""


class Trickle:
    """An answer that comes byte by byte, and does not end."""


Answer = dict[str, Any] | Refusal | Hangup | Trickle


class Endpoint:
    """The endpoint: what it was asked, and what it has still to answer."""

    def __init__(self, *answers: Answer) -> None:
        self.requested: list[Asked] = []
        self.url = ""
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, then close."""
        try:
            self.requested.append(await _request(reader))
            answer = self._answers.pop(0)
            if isinstance(answer, Hangup):
                return
            if isinstance(answer, Trickle):
                await _trickle(writer)
                return
            refusal = answer if isinstance(answer, Refusal) else Refusal(200, json.dumps(answer))
            data = refusal.body.encode()
            headers = {"Content-Length": str(len(data)), "Connection": "close", **refusal.headers}
            lines = [f"HTTP/1.1 {refusal.status} X", *(f"{k}: {v}" for k, v in headers.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode() + data)
            await writer.drain()
        finally:
            writer.close()


async def _trickle(writer: asyncio.StreamWriter) -> None:
    """Answer until the caller is gone."""
    writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.01)


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {
        name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(head[0].split()[1], headers, json.loads(body))


@asynccontextmanager
async def endpoint(*answers: Answer) -> AsyncGenerator[Endpoint, None]:
    """Serve an endpoint with these answers, one after the other."""
    made = Endpoint(*answers)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def answer(
    content: str | None = None, *calls: tuple[str, str], usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Write an answer as such servers do: text, and calls by name and arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": given}}
            for n, (name, given) in enumerate(calls)
        ]
    reason = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    found = usage or {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return {"id": "answer-1", "object": "chat.completion", "choices": [choice], "usage": found}
