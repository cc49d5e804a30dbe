"""Chunks of the AI SDK's UI message stream from the parts of a task. No I/O.

The stream has the header ``x-vercel-ai-ui-message-stream: v1``, and is that of AI SDK 5 to 7:
https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from redis_state.gateway.chat.parts import (
    ChildNamed,
    OtherUpdate,
    Part,
    PauseDecided,
    PauseOpened,
    StateChanged,
    StateGiven,
    TextAdded,
    TextBegan,
    TextDropped,
    TextEnded,
    ToolCalled,
    ToolReturned,
)
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.models import TaskStatus

Chunk: TypeAlias = dict[str, Any]

# What a status says, a chat shows by itself.
_UNTOLD = frozenset({"status_change"})
_DELTAS = ("text-delta", "reasoning-delta")


class MessageChunks:
    """Write one message: what its task's parts say, and its end.

    ``approvals``: a pause is a tool that asks for an approval, which AI SDK 5 does not know. Each
    pause is also a part ``data-pause``.
    """

    def __init__(self, parts: TaskParts, message_id: str, *, approvals: bool) -> None:
        self._parts = parts
        self._message_id = message_id
        self._approvals = approvals

    def started(self) -> list[Chunk]:
        """Begin the message, or continue it: that has the same id."""
        return [{"type": "start", "messageId": self._message_id}]

    def write(self, parts: Sequence[Part]) -> list[Chunk]:
        """Write what a row says."""
        return [chunk for part in parts for chunk in self._write(part)]

    def halted(self) -> list[Chunk]:
        """End a message whose task waits for a decision."""
        return [*self.write(self._parts.close()), {"type": "finish"}]

    def ended(self, status: TaskStatus | None, result: Any, error: str | None) -> list[Chunk]:
        """End a message whose task is terminal; None: its record is gone."""
        if status is TaskStatus.COMPLETE:
            shown = self.write(self._parts.last_text(result))
            return [*shown, *self.halted()]
        closed = self.write(self._parts.close())
        if status is TaskStatus.CANCELLED:
            return [*closed, {"type": "abort"}]
        message = "the task is no longer kept" if status is None else error
        return [*closed, {"type": "error", "errorText": message or "the task has failed"}]

    def _write(self, part: Part) -> Iterator[Chunk]:
        match part:
            case TextBegan(text_id, kind, author):
                by = {} if author is None else {"redis_state": {"task_id": author}}
                named = {"providerMetadata": by} if by else {}
                yield {"type": f"{kind}-start", "id": text_id, **named}
            case TextAdded(text_id, kind, text):
                yield {"type": f"{kind}-delta", "id": text_id, "delta": text}
            case TextEnded(text_id, kind):
                yield {"type": f"{kind}-end", "id": text_id}
            case TextDropped(text_id):
                # No chunk takes a part back: a page may hide it.
                yield _data("dropped", {"id": text_id})
            case ToolCalled(call_id, tool, arguments):
                yield from _called(call_id, tool, arguments)
            case ToolReturned(call_id, result, failed):
                yield _returned(call_id, result, failed=failed)
            case _:
                yield from self._more(part)

    def _more(self, part: Part) -> Iterator[Chunk]:
        match part:
            case StateGiven(state):
                yield _data("state", state, "state")
            case StateChanged(key, value):
                yield _data("value", {"key": key, "value": value}, f"value:{key}")
            case PauseOpened():
                yield from self._approval_request(part)
            case PauseDecided():
                yield from self._decided(part)
            case ChildNamed(task_id, about=about):
                yield _data("child", about, task_id)
            case OtherUpdate(kind, content) if kind not in _UNTOLD:
                yield _data(kind, content)
            case _:
                pass

    def _approval_request(self, part: PauseOpened) -> Iterator[Chunk]:
        yield _data("pause", {**part.about, "state": "open"}, part.pause_id)
        if self._approvals:
            yield from _called(part.pause_id, part.name, part.payload)
            asked = {"approvalId": part.pause_id, "toolCallId": part.pause_id}
            yield {"type": "tool-approval-request", **asked}

    def _decided(self, part: PauseDecided) -> Iterator[Chunk]:
        decided = {"approved": part.approved, "by": part.actor}
        about = {"pause_id": part.pause_id, "state": "resolved", **decided}
        yield _data("pause", about, part.pause_id)
        if not self._approvals or part.pause_id not in self._parts.asked:
            return
        if part.approved:
            yield _returned(part.pause_id, decided)
        else:
            yield {"type": "tool-output-denied", "toolCallId": part.pause_id}


class JoinedChunks:
    """Chunks in which the deltas of a text that follow one another are one."""

    def __init__(self) -> None:
        # Each with its deltas, which are joined once: their number may be that of the rows.
        self._said: list[tuple[Chunk, list[str]]] = []

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks."""
        for each in chunks:
            if each["type"] not in _DELTAS:
                self._said.append((each, []))
                continue
            last, deltas = self._said[-1] if self._said else ({}, [])
            if (last.get("type"), last.get("id")) == (each["type"], each["id"]):
                deltas.append(each["delta"])
            else:
                self._said.append((each, [each["delta"]]))

    def drop(self, ids: Collection[str]) -> None:
        """Leave out the chunks of texts."""
        self._said = [(each, deltas) for each, deltas in self._said if each.get("id") not in ids]

    def chunks(self) -> list[Chunk]:
        """Return the chunks."""
        return [
            {**each, "delta": "".join(deltas)} if deltas else each for each, deltas in self._said
        ]


def notice(name: str, data: Any) -> Chunk:
    """Write what is no part of the message."""
    return {"type": f"data-{name}", "data": data, "transient": True}


def _called(call_id: str, tool: str, arguments: Any) -> list[Chunk]:
    # Of any name: a page has no types for the tools of a handler.
    named: Chunk = {"toolCallId": call_id, "toolName": tool, "dynamic": True}
    return [
        {"type": "tool-input-start", **named},
        {"type": "tool-input-available", **named, "input": arguments},
    ]


def _returned(call_id: str, result: Any, *, failed: bool = False) -> Chunk:
    named: Chunk = {"toolCallId": call_id, "dynamic": True}
    if failed:
        return {"type": "tool-output-error", **named, "errorText": str(result)}
    return {"type": "tool-output-available", **named, "output": result}


def _data(name: str, value: Any, part_id: str | None = None) -> Chunk:
    """Write a part of our own. One with an id takes the place of the last with it."""
    named = {} if part_id is None else {"id": part_id}
    return {"type": f"data-{name}", **named, "data": value}
