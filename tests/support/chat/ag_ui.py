"""Clients of AG-UI's runs: events are checked by the official models, and by their order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from ag_ui.core import Event
from pydantic import TypeAdapter

from tests.support.http.event_streams import PATIENCE_S

MODELS: TypeAdapter[Any] = TypeAdapter(Event)
# What opens and what closes, and under which name.
PAIRS = {
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "messageId"),
    "REASONING_START": ("REASONING_END", "messageId"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE_END", "messageId"),
    "TOOL_CALL_START": ("TOOL_CALL_END", "toolCallId"),
    "STEP_STARTED": ("STEP_FINISHED", "stepName"),
}
INSIDE = {
    "TEXT_MESSAGE_CONTENT": ("TEXT_MESSAGE_START", "messageId"),
    "REASONING_MESSAGE_CONTENT": ("REASONING_MESSAGE_START", "messageId"),
    "TOOL_CALL_ARGS": ("TOOL_CALL_START", "toolCallId"),
}
CLOSERS = {end: (start, name) for start, (end, name) in PAIRS.items()}


class RunChecker:
    """Holds what the official client holds of a stream: what is open, and whether a run is."""

    def __init__(self) -> None:
        self.running = False
        self.open: set[tuple[str, str]] = set()

    def check(self, event: dict[str, Any]) -> None:
        """Accept an event, or fail."""
        MODELS.validate_python(event)
        kind = event["type"]
        if kind == "RUN_STARTED":
            assert not self.running, "a run is open"
            self.running = True
            return
        assert self.running, f"{kind} outside of a run"
        if kind in PAIRS:
            opened = (kind, event[PAIRS[kind][1]])
            assert opened not in self.open, event
            self.open.add(opened)
        elif kind in CLOSERS:
            start, name = CLOSERS[kind]
            self.open.remove((start, event[name]))
        elif kind in INSIDE:
            start, name = INSIDE[kind]
            assert (start, event[name]) in self.open, event
        elif kind == "RUN_FINISHED":
            assert not self.open
            self.running = False
        elif kind == "RUN_ERROR":
            self.running, self.open = False, set()


@dataclass
class AgUiClient:
    """Keeps what it was sent, over all of its connections."""

    http: httpx.AsyncClient
    checker: RunChecker = field(default_factory=RunChecker)
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ids: list[str] = field(default_factory=list[str])
    status: int = 0

    async def run(self, handler: str, body: dict[str, Any], **options: Any) -> Self:
        """Post a run, and read it to its end."""
        async with self.running(handler, body, **options) as events:
            async for _ in events:
                pass
        return self

    async def connect(self, session: str, task: str, **options: Any) -> Self:
        """Connect behind the last event, and read to the end."""
        async with self.connected(session, task, **options) as events:
            async for _ in events:
                pass
        return self

    def running(self, handler: str, body: dict[str, Any], **options: Any) -> Any:
        """Post a run."""
        return self._stream("POST", f"/v1/ag-ui/{handler}", json=body, **options)

    def connected(self, session: str, task: str, *, fresh: bool = False, **options: Any) -> Any:
        """Connect behind the last event, or as one that has none."""
        headers = {} if fresh or not self.ids else {"last-event-id": self.ids[-1]}
        url = f"/v1/sessions/{session}/tasks/{task}/ag-ui"
        return self._stream("GET", url, headers=headers, **options)

    @asynccontextmanager
    async def _stream(self, method: str, url: str, **options: Any) -> AsyncGenerator[Any]:
        async with (
            asyncio.timeout(PATIENCE_S),
            self.http.stream(method, url, **options) as response,
        ):
            self.status = response.status_code
            if response.status_code >= 400:
                await response.aread()
                raise AssertionError(f"{response.status_code}: {response.text}")
            yield self._read(response)

    async def _read(self, response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
        given: str | None = None
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                given = line.removeprefix("id: ")
            elif line.startswith("data: "):
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                self.checker.check(event)
                self.events.append(event)
                if given is not None:
                    assert given not in self.ids, f"{given} came twice"
                    self.ids.append(given)
                given = None
                yield event

    def kinds(self, *without: str) -> list[str]:
        """Return the types of events, without some."""
        return [each["type"] for each in self.events if each["type"] not in without]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a type."""
        return [each for each in self.events if each["type"] == kind]

    def children(self) -> list[dict[str, Any]]:
        """Give what the events say of child tasks, in order."""
        return [each["value"] for each in self.of("CUSTOM") if each["name"] == "redis_state.child"]

    def text(self, role: str = "assistant") -> dict[str, str]:
        """Put the messages together, as the official client does."""
        messages: dict[str, str] = {}
        for event in self.events:
            match event:
                case {"type": "MESSAGES_SNAPSHOT", "messages": found}:
                    messages = {
                        each["id"]: each["content"]
                        for each in found
                        if each["role"] == role and "content" in each
                    }
                case {"type": "TEXT_MESSAGE_START", "messageId": name} if role == "assistant":
                    messages.setdefault(name, "")
                case {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": delta} if (
                    role == "assistant"
                ):
                    messages[name] += delta
                case _:
                    pass
        return messages


def run_input(thread: str, run: str, text: str = "hello", **more: Any) -> dict[str, Any]:
    """Write a RunAgentInput."""
    message = {"id": f"{run}-user", "role": "user", "content": text}
    body: dict[str, Any] = {"threadId": thread, "runId": run, "messages": [message]}
    return {**body, "tools": [], "context": [], "state": {}, "forwardedProps": {}, **more}
