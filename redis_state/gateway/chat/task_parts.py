"""Read what the rows of one task say to a chat. No I/O.

The same rows make the same parts under the same ids, in each process and each time. So a
protocol's stream can be made again up to any row, and continued behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from redis_state.gateway.chat.parts import (
    ChildNamed,
    Halted,
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
from redis_state.gateway.chat.shown_task import ShownTask
from redis_state.models import StateUpdate, TaskStatus, UpdateType

_SLEEP: Final = "sleep"
_ENDS: Final = frozenset(status.value for status in TaskStatus if status.is_terminal)


class TaskParts(ShownTask):
    """Read the rows of one task in order, each once, and keep what they say."""

    def feed(self, update: StateUpdate) -> list[Part]:
        """Read a row; return what it says."""
        return self._keep_all(self._read(update))

    def close(self) -> list[Part]:
        """End what is open, as a run of a protocol ends."""
        return self._keep_all(self._closing())

    def last_text(self, result: Any) -> list[Part]:
        """Show a task's result, if it is text and the task has written none."""
        if self.wrote_text or not isinstance(result, str) or not result:
            return []
        return self._keep_all(self._whole(f"{self._task_id}:result", "text", result))

    def _read(self, row: StateUpdate) -> Iterator[Part]:
        match row.update_type, row.content:
            case _, {"text": str(), "text_id": str(), "generation": str(), "part": int()}:
                yield from self._written(row)
            case UpdateType.THINKING, {"text": str(text)}:
                yield from self._whole(self._own(row), "reasoning", text)
            case UpdateType.RESULT, str(text):
                yield from self._whole(self._own(row), "text", text)
            case UpdateType.TOOL_CALL, {"tool": str()}:
                yield from self._tool(row, row.content)
            case UpdateType.PROGRESS, content:
                yield from self._progress(row, content)
            case UpdateType.CHECKPOINT, {"pause": str(), "pause_id": str()}:
                yield from self._asks(row.content)
            case UpdateType.STATUS_CHANGE, {"status": str()}:
                yield from self._moved(row.content)
            case kind, content:
                yield from self._other(kind, content)

    def _written(self, row: StateUpdate) -> Iterator[Part]:
        content: dict[str, Any] = row.content
        text_id, generation, part = content["text_id"], content["generation"], content["part"]
        # The text that was written last stands last.
        known, last = self._texts.pop(text_id, (generation, 0))
        if known != generation:
            yield from self._drop(self._part_id(text_id, known))
            last = 0
        self._texts[text_id] = generation, max(part, last)
        if part <= last:
            return
        kind: TextKind = "reasoning" if row.update_type is UpdateType.THINKING else "text"
        part_id, text = self._part_id(text_id, generation), str(content["text"])
        shown = self.shown.get(part_id)
        if not isinstance(shown, ShownMessage) or not shown.is_open:
            if not text:
                return
            yield TextBegan(part_id, kind, self._author)
        if text:
            yield TextAdded(part_id, kind, text, self._author)
        if content.get("end"):
            yield TextEnded(part_id, kind, self._author)

    def _drop(self, part_id: str) -> Iterator[Part]:
        shown = self.shown.get(part_id)
        if isinstance(shown, ShownMessage):
            if shown.is_open:
                yield TextEnded(part_id, shown.kind, shown.author)
            yield TextDropped(part_id, shown.kind)

    def _whole(self, part_id: str, kind: TextKind, text: str) -> Iterator[Part]:
        if text:
            yield TextBegan(part_id, kind, self._author)
            yield TextAdded(part_id, kind, text, self._author)
            yield TextEnded(part_id, kind, self._author)

    def _tool(self, row: StateUpdate, more: Mapping[str, Any]) -> Iterator[Part]:
        given = more.get("tool_call_id")
        call_id = given if isinstance(given, str) and given else self._own(row)
        if call_id not in self.shown:
            yield ToolCalled(call_id, more["tool"], more.get("arguments"))
        known = self.shown.get(call_id)
        # A call without an id has both in one row, and no result if that is None.
        returned = "result" in more and (more["result"] is not None or call_id == given)
        if returned and not (isinstance(known, ShownCall) and known.returned):
            failed = more.get("outcome") in ("failed", "denied")
            yield ToolReturned(call_id, more["result"], failed=failed)

    def _progress(self, row: StateUpdate, content: Any) -> Iterator[Part]:
        match content:
            case {"graph": "values", "namespace": [], "data": data}:
                yield StateGiven(data)
                return
            case _:
                pass
        if row.step_index is not None:
            match content:
                case {"message": str(message)} if message:
                    name = message
                case _:
                    name = f"step {row.step_index}"
            if name != self.step:
                if self.step is not None:
                    yield StepEnded(self.step)
                yield StepBegan(name)
        yield OtherUpdate("progress", content)

    def _asks(self, content: dict[str, Any]) -> Iterator[Part]:
        if content.get("reason") == _SLEEP and content.get("payload") is None:
            return
        pause_id, name = content["pause_id"], content["pause"]
        self._asked.append((name, pause_id))
        self.asked[pause_id] = content
        yield PauseOpened(pause_id, name, content.get("payload"), content)

    def _other(self, kind: UpdateType, content: Any) -> Iterator[Part]:
        match content:
            case {"notice": "value", "key": str(key), "value": value}:
                yield StateChanged(key, value)
            case {"notice": "child", "task_id": str(child), "handler": str(handler)}:
                yield from self._child(child, handler)
            case {"pause": str(name), "approved": bool(approved), "actor": str(actor)}:
                yield from self._decided(name, actor, approved=approved)
            case _:
                yield OtherUpdate(kind.value.lower(), content)

    def _moved(self, content: Mapping[str, Any]) -> Iterator[Part]:
        match content:
            case {"pause": str(name), "approved": bool(approved), "actor": str(actor)}:
                yield from self._decided(name, actor, approved=approved)
            case {"waits_for": str(child)}:
                yield from self._child(child)
            case {"child": str(child)}:
                yield from self._child(child, ended=True)
            case _:
                pass
        yield OtherUpdate("status_change", content)
        status = content["status"]
        self.halted = False
        if status == TaskStatus.PAUSED.value:
            yield Halted()
        # A run of a protocol may end here. What is open ends by this row, for each reader alike.
        if status == TaskStatus.PAUSED.value or status in _ENDS:
            yield from self._closing()

    def _child(
        self, task_id: str, handler: str | None = None, *, ended: bool = False
    ) -> Iterator[Part]:
        known = self._named.get(task_id)
        if known is None or ended > known.ended:
            yield ChildNamed(task_id, known.handler if known else handler, ended)

    def _closing(self) -> Iterator[Part]:
        for each in self.open_texts:
            yield TextEnded(each.text_id, each.kind, each.author)
        if self.step is not None:
            yield StepEnded(self.step)

    def _decided(self, name: str, actor: str, *, approved: bool) -> Iterator[Part]:
        found = next((each for each in self._asked if each[0] == name), None)
        if found is not None:
            self._asked.remove(found)
            yield PauseDecided(found[1], approved, actor)

    def _own(self, row: StateUpdate) -> str:
        return f"{self._task_id}:{row.update_id}"
