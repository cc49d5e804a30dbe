"""AG-UI's events from the parts of a task. No I/O.

Version 1.0 of the protocol, as `ag-ui-protocol` 1.0 writes it: https://docs.ag-ui.com/concepts/events
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from redis_state.gateway.chat.parts import (
    ChildNamed,
    OtherUpdate,
    Part,
    PauseDecided,
    PauseOpened,
    StateChanged,
    StateGiven,
    StepBegan,
    StepEnded,
    TextAdded,
    TextBegan,
    TextDropped,
    TextEnded,
    TextKind,
    ToolCalled,
    ToolReturned,
)
from redis_state.gateway.chat.shown import ShownCall, ShownMessage
from redis_state.gateway.chat.task_parts import TaskParts
from redis_state.models import TaskStatus
from redis_state.serialization import codec

PROTOCOL: Final = "1.0"
# What the value of an approval without a form is.
APPROVAL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "value": {}},
    "required": ["approved"],
}

AgUiEvent: TypeAlias = dict[str, Any]

_SUCCESS: Final[dict[str, Any]] = {"type": "success"}


class RunEvents:
    """Write one run of the protocol: its opening, what its task's parts say, its end."""

    def __init__(
        self, parts: TaskParts, thread_id: str, run_id: str, history: Sequence[dict[str, Any]]
    ) -> None:
        self._parts = parts
        self._run = {"threadId": thread_id, "runId": run_id}
        self._history = history
        # Whether the client has a state that a change can be applied to.
        self._has_state = False

    def started(self) -> list[AgUiEvent]:
        """Open a run whose client has what came before."""
        return [{"type": "RUN_STARTED", **self._run, "protocolVersion": PROTOCOL}]

    def joined(self) -> list[AgUiEvent]:
        """Open a run for a client that may have nothing, or a part of it."""
        children = [self.custom_event("child", each.about) for each in self._parts.children]
        opened = [*self.started(), self._messages(self._parts), *children, *self._unfinished()]
        return [*opened, *self._missed(self._parts)]

    def resumed(self) -> list[AgUiEvent]:
        """Open a run for a client that has what came before, without what others wrote since."""
        return [*self.started(), self._messages(self._parts), *self._unfinished()]

    def went_back(self, kept: TaskParts) -> list[AgUiEvent]:
        """Replace what the client has by what is kept, after the server has lost rows."""
        closed = self.write(self._parts.close())
        messages = self._messages(kept)
        self._parts.go_back(kept)
        return [*closed, messages, *self._unfinished(), *self._missed(kept)]

    def _missed(self, parts: TaskParts) -> list[AgUiEvent]:
        if not parts.passed:
            return []
        return [self.custom_event("resync", {"missed": parts.passed, "reason": "too_long"})]

    def _unfinished(self) -> list[AgUiEvent]:
        opened: list[AgUiEvent] = []
        if self._parts.has_state or self._has_state:
            opened.append({"type": "STATE_SNAPSHOT", "snapshot": self._parts.state})
        if self._parts.step is not None:
            opened.append({"type": "STEP_STARTED", "stepName": self._parts.step})
        for text in self._parts.open_texts:
            opened += self._begin(text.text_id, text.kind, text.author)
        return opened

    def pass_over(self, parts: Sequence[Part]) -> None:
        """Note what a client has seen, or gets by `joined`."""
        if any(isinstance(part, StateGiven | StateChanged) for part in parts):
            self._has_state = True

    def write(self, parts: Sequence[Part], known: TaskParts | None = None) -> list[AgUiEvent]:
        """Write what a row says. A part without an event of its own is a CUSTOM.

        ``known`` has the texts of the rows up to this one, if a text is dropped.
        """
        events: list[AgUiEvent] = []
        for number, part in enumerate(parts):
            if isinstance(part, TextDropped):
                # No event takes a message back. What begins in this row has its own events.
                rest = {each.text_id for each in parts[number:] if isinstance(each, TextBegan)}
                events.append(self._messages(known or self._parts, without=rest))
            else:
                events += self._write(part)
        self.pass_over(parts)
        return events

    def interrupted(self, pauses: Sequence[dict[str, Any]]) -> list[AgUiEvent]:
        """Close a run whose task waits for decisions, by the documents of the pauses."""
        interrupts = [_interrupt(pause) for pause in pauses]
        outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else _SUCCESS
        return self._closed(outcome)

    def ended(self, status: TaskStatus | None, result: Any, error: str | None) -> list[AgUiEvent]:
        """Close a run whose task is terminal; None: its record is gone."""
        if status is TaskStatus.COMPLETE:
            shown = self.write(self._parts.last_text(result))
            closed = self._closed(_SUCCESS)
            if result is not None:
                closed[-1]["result"] = result
            return [*shown, *closed]
        if status is TaskStatus.CANCELLED:
            return self._closed({"type": "cancelled"})
        message = "the task is no longer kept" if status is None else error
        code = "GONE" if status is None else status.value
        return [{"type": "RUN_ERROR", "message": message or "the task has failed", "code": code}]

    def custom_event(self, name: str, value: Any) -> AgUiEvent:
        """Write what the protocol has no event for."""
        return {"type": "CUSTOM", "name": f"redis_state.{name}", "value": value}

    def _closed(self, outcome: dict[str, Any]) -> list[AgUiEvent]:
        events = self.write(self._parts.close())
        return [*events, {"type": "RUN_FINISHED", **self._run, "outcome": outcome}]

    def _write(self, part: Part) -> Iterator[AgUiEvent]:
        match part:
            case TextBegan(text_id, kind, author):
                yield from self._begin(text_id, kind, author)
            case TextAdded(text_id, kind, text, author):
                name = "REASONING_MESSAGE" if kind == "reasoning" else "TEXT_MESSAGE"
                added = {"type": f"{name}_CONTENT", "messageId": text_id, "delta": text}
                yield added | _by(author)
            case TextEnded(text_id, kind, author):
                yield from self._end(text_id, kind, author)
            case ToolCalled(call_id, tool, arguments):
                called = {"toolCallId": call_id}
                yield {"type": "TOOL_CALL_START", **called, "toolCallName": tool}
                yield {"type": "TOOL_CALL_ARGS", **called, "delta": _text(arguments)}
                yield {"type": "TOOL_CALL_END", **called}
            case ToolReturned(call_id, result):
                returned = _returned(call_id, result)
                yield {"type": "TOOL_CALL_RESULT", "messageId": returned.pop("id"), **returned}
            case StateGiven(state):
                yield {"type": "STATE_SNAPSHOT", "snapshot": state}
            case StateChanged(key, value):
                yield self._changed(key, value)
            case StepBegan(name) | StepEnded(name):
                moved = "STARTED" if isinstance(part, StepBegan) else "FINISHED"
                yield {"type": f"STEP_{moved}", "stepName": name}
            case _:
                yield from self._custom(part)

    def _custom(self, part: Part) -> Iterator[AgUiEvent]:
        match part:
            case PauseOpened(about=about):
                yield self.custom_event("pause", about)
            case PauseDecided(pause_id, approved, actor):
                decided = {"pause_id": pause_id, "approved": approved, "actor": actor}
                yield self.custom_event("decision", decided)
            case ChildNamed(about=about):
                yield self.custom_event("child", about)
            case OtherUpdate(kind, content):
                yield self.custom_event(kind, content)
            case _:
                pass

    def _begin(self, text_id: str, kind: TextKind, author: str | None) -> list[AgUiEvent]:
        if kind == "text":
            began = {"type": "TEXT_MESSAGE_START", "messageId": text_id, "role": "assistant"}
            return [began | _by(author)]
        return [
            {"type": "REASONING_START", "messageId": text_id},
            {"type": "REASONING_MESSAGE_START", "messageId": text_id, "role": "reasoning"},
        ]

    def _end(self, text_id: str, kind: TextKind, author: str | None) -> list[AgUiEvent]:
        if kind == "text":
            return [{"type": "TEXT_MESSAGE_END", "messageId": text_id, **_by(author)}]
        return [
            {"type": "REASONING_MESSAGE_END", "messageId": text_id},
            {"type": "REASONING_END", "messageId": text_id},
        ]

    def _changed(self, key: str, value: Any) -> AgUiEvent:
        if not self._has_state:
            self._has_state = True
            return {"type": "STATE_SNAPSHOT", "snapshot": self._parts.state}
        path = "/" + key.replace("~", "~0").replace("/", "~1")
        return {"type": "STATE_DELTA", "delta": [{"op": "add", "path": path, "value": value}]}

    def _messages(self, parts: TaskParts, *, without: Collection[str] = ()) -> AgUiEvent:
        known = [each for name, each in parts.shown.items() if name not in without]
        own = [message for shown in known for message in _message(shown)]
        ids = {message["id"] for message in own}
        # A client's own messages have ids of any kind.
        before = [
            message
            for message in self._history
            if not isinstance(name := message.get("id"), str) or name not in ids
        ]
        return {"type": "MESSAGES_SNAPSHOT", "messages": [*before, *own]}


def at_ms(event: AgUiEvent, moment: datetime) -> AgUiEvent:
    """Write an event with the time of its row. One without a zone, as of a host, is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return {**event, "timestamp": round(aware.timestamp() * 1000)}


def _by(author: str | None) -> dict[str, Any]:
    """Return what names the writer of a text, if it is another one than the run's."""
    return {} if author is None else {"subagentRunId": author}


def _message(shown: ShownMessage | ShownCall) -> Iterator[dict[str, Any]]:
    match shown:
        case ShownMessage(text_id=text_id, kind=kind, text=text, author=author):
            role = "reasoning" if kind == "reasoning" else "assistant"
            yield {"id": text_id, "role": role, "content": text, **_by(author)}
        case ShownCall(call_id, tool, arguments, returned):
            function = {"name": tool, "arguments": _text(arguments)}
            call = {"id": call_id, "type": "function", "function": function}
            yield {"id": call_id, "role": "assistant", "toolCalls": [call]}
            if returned is not None:
                yield _returned(call_id, returned.result)


def _returned(call_id: str, result: Any) -> dict[str, Any]:
    content = result if isinstance(result, str) else _text(result)
    named = {"id": f"{call_id}:result", "toolCallId": call_id}
    return {**named, "content": content, "role": "tool"}


def _interrupt(pause: dict[str, Any]) -> dict[str, Any]:
    payload = pause["payload"]
    written: dict[str, Any] = {
        "id": pause["pause_id"],
        "reason": pause["name"],
        "message": pause["reason"],
        "responseSchema": APPROVAL if pause["schema"] is None else pause["schema"],
        "expiresAt": pause["expires_at"],
        "metadata": {"payload": payload, "tags": pause["tags"]},
    }
    match payload:
        case {"tool_call_id": str(call_id)}:
            return written | {"toolCallId": call_id}
        case _:
            return written


def _text(value: Any) -> str:
    return value if isinstance(value, str) else codec.encode(value).decode()
