"""Read what the rows of one task say to a chat. No I/O.

The same rows make the same parts under the same ids, in each process and each time. So a
protocol's stream can be made again up to any row, and continued behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

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
from redis_state.gateway.chat.shown import (
    MOST_SHOWN,
    ShownCall,
    ShownMessage,
    drop_first,
    keep_newest,
    slim,
)
from redis_state.models import StateUpdate, TaskStatus, UpdateType

_SLEEP: Final = "sleep"
_ENDS: Final = frozenset(status.value for status in TaskStatus if status.is_terminal)


class TaskParts:
    """Read the rows of one task in order, each once, and keep what a client that joins needs.

    ``keeps_texts`` is False for a protocol that never gives texts again. A task below the chat's is
    the ``author`` of its texts, and keeps them in what the chat has ``shown`` and passed by.
    """

    def __init__(
        self,
        task_id: str,
        state: Any = None,
        *,
        keeps_texts: bool = True,
        author: str | None = None,
        shown: dict[str, ShownMessage | ShownCall] | None = None,
        passed_texts: dict[str, int] | None = None,
    ) -> None:
        self.shown: dict[str, ShownMessage | ShownCall] = {} if shown is None else shown
        self._author = author
        self.state: Any = state
        self.has_state: bool = False
        self.step: str | None = None
        # Whether the task waits for something, by the last row that has a status.
        self.halted: bool = False
        self.wrote_text: bool = False
        # What the rows of all pauses that were opened say, by their ids.
        self.asked: dict[str, dict[str, Any]] = {}
        self._keeps_texts = keeps_texts
        self._task_id = task_id
        # The generation of each text, and its part read last.
        self._texts: dict[str, tuple[str, int]] = {}
        # The children that were named, by their ids.
        self._named: dict[str, ChildNamed] = {}
        # Names and ids of open pauses, the oldest first.
        self._asked: list[tuple[str, str]] = []
        # The state, if it is no one else's object.
        self._own_state: dict[str, Any] = {}
        # How many rows were passed by, with the sizes of their texts, and whether what has ended
        # was forgotten.
        self.passed: int = 0
        self._passed_texts: dict[str, int] = {} if passed_texts is None else passed_texts
        self.forgot: bool = False

    @property
    def open_texts(self) -> list[ShownMessage]:
        """The texts that have begun and not ended."""
        return [
            each
            for each in self.shown.values()
            if isinstance(each, ShownMessage)
            and each.is_open
            # A chat's own task ends all that is open.
            and (self._author is None or each.author == self._author)
        ]

    @property
    def children(self) -> list[ChildNamed]:
        """The children that were named, the oldest first, as they were named last."""
        return list(self._named.values())

    def feed(self, update: StateUpdate) -> list[Part]:
        """Read a row; return what it says."""
        parts = list(self._read(update))
        for part in parts:
            self._keep(part)
        return parts

    def pass_by(self) -> None:
        """Show nothing of the texts and tools that were read, as if their rows were trimmed."""
        self.passed += 1
        for name, each in self.shown.items():
            if isinstance(each, ShownMessage):
                self._passed_texts.pop(name, None)
                self._passed_texts[name] = each.size
        self.shown.clear()
        keep_newest(self._passed_texts)
        self.know_newest()

    def know_newest(self) -> None:
        """Forget the generations of the oldest texts, if there are many."""
        keep_newest(self._texts)

    def forget_texts(self) -> None:
        """Keep from now on what an open stream needs: no texts, arguments and results."""
        self._keeps_texts = False
        for name, each in self.shown.items():
            if isinstance(each, ShownMessage):
                each.forget()
            else:
                self.shown[name] = slim(each)

    def know_shown_only(self) -> None:
        """Forget the generations of texts that are not known any more."""
        self._texts = {
            name: known
            for name, known in self._texts.items()
            if self._part_id(name, known[0]) in self.shown
        }

    def close(self) -> list[Part]:
        """End what is open, as a run of a protocol ends."""
        parts = list(self._closing())
        for part in parts:
            self._keep(part)
        return parts

    def go_back(self, kept: TaskParts) -> list[Part]:
        """Continue from what is kept, after the server has lost rows.

        Return what changes for a client: texts that lost a piece are dropped and given again, and
        pauses that are open again come again.
        """
        changes: list[Part] = []
        again = dict(self._to_give(kept))
        for each in self.shown.values():
            if isinstance(each, ShownMessage):
                changes += self._go_back(each, kept, again)
        for each in again.values():
            changes += [TextBegan(each.text_id, each.kind, each.author)]
            changes += [TextAdded(each.text_id, each.kind, each.text, each.author)]
            if not each.is_open:
                changes.append(TextEnded(each.text_id, each.kind, each.author))
        changes += [
            PauseOpened(pause_id, about["pause"], about.get("payload"), about)
            for pause_id, about in kept.asked.items()
            if about and not self.asked.get(pause_id)
        ]
        self._become(kept)
        return changes

    def last_text(self, result: Any) -> list[Part]:
        """Show a task's result, if it is text and the task has written none."""
        if self.wrote_text or not isinstance(result, str) or not result:
            return []
        parts = list(self._whole(f"{self._task_id}:result", "text", result))
        for part in parts:
            self._keep(part)
        return parts

    def _to_give(self, kept: TaskParts) -> Iterator[tuple[str, ShownMessage]]:
        for name, each in kept.shown.items():
            if not isinstance(each, ShownMessage):
                continue
            # What this does not know any more the client has, or it is too old for it.
            if name in self.shown or not (self.forgot or name in self._passed_texts):
                yield name, each
            else:
                each.is_open = False

    def _go_back(
        self, each: ShownMessage, kept: TaskParts, again: dict[str, ShownMessage]
    ) -> Iterator[Part]:
        left = kept.shown.get(each.text_id)
        if left is None and kept._passed_texts.get(each.text_id) == each.size:
            # It is kept, and too old to be shown again.
            if each.is_open:
                yield TextEnded(each.text_id, each.kind, each.author)
            return
        if isinstance(left, ShownMessage) and left.size == each.size:
            del again[each.text_id]
            if each.is_open and not left.is_open:
                yield TextEnded(each.text_id, each.kind, each.author)
            # A text that the client has as ended begins again with its next piece.
            left.is_open = left.is_open and each.is_open
            return
        if each.is_open:
            yield TextEnded(each.text_id, each.kind, each.author)
        yield TextDropped(each.text_id, each.kind)

    def _become(self, kept: TaskParts) -> None:
        self.shown = kept.shown
        self.state, self.has_state, self.step = kept.state, kept.has_state, kept.step
        self.halted, self.wrote_text, self.asked = kept.halted, kept.wrote_text, kept.asked
        self._texts, self._asked, self._named = kept._texts, kept._asked, kept._named
        self._passed_texts = kept._passed_texts
        if not self._keeps_texts:
            self.forget_texts()

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

    def _keep(self, part: Part) -> None:
        match part:
            case TextBegan() | TextAdded() | TextEnded() | TextDropped():
                self._keep_text(part)
            case ToolCalled(call_id, tool, arguments):
                self._show(call_id, ShownCall(call_id, tool, arguments))
            case ToolReturned(call_id):
                called = self.shown.get(call_id)
                if isinstance(called, ShownCall):
                    called.returned = part
                    self._show(call_id, called)
            case StateGiven(state):
                self.state, self.has_state = state, True
            case StateChanged(key, value):
                self._change_state(key, value)
            case _:
                self._keep_more(part)

    def _keep_more(self, part: Part) -> None:
        match part:
            case PauseDecided(pause_id) if pause_id in self.asked:
                self.asked[pause_id] = {}
            case ChildNamed():
                self._name(part)
            case StepBegan(name):
                self.step = name
            case StepEnded():
                self.step = None
            case _:
                self.halted = self.halted or isinstance(part, Halted)

    def _change_state(self, key: str, value: Any) -> None:
        if self.state is not self._own_state:
            # Copied once: at each change it is work by the square of the names.
            given: object = self.state
            kept = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
            self.state = self._own_state = {**kept}
        self._own_state[key] = value
        self.has_state = True

    def _name(self, child: ChildNamed) -> None:
        self._named[child.task_id] = child
        if len(self._named) > 2 * MOST_SHOWN:
            ended = [name for name, each in self._named.items() if each.ended]
            drop_first(self._named, ended or list(self._named)[:1])

    def _keep_text(self, part: TextBegan | TextAdded | TextEnded | TextDropped) -> None:
        if isinstance(part, TextDropped):
            del self.shown[part.text_id]
            return
        text = self.shown.get(part.text_id)
        if not isinstance(text, ShownMessage):
            size = self._passed_texts.pop(part.text_id, 0)
            text = ShownMessage(part.text_id, part.kind, size=size, author=self._author)
            self._show(part.text_id, text)
        text.is_open = not isinstance(part, TextEnded)
        if isinstance(part, TextAdded):
            text.add(part.text, keep=self._keeps_texts)
        if text.author == self._author and part.kind == "text":
            self.wrote_text = True

    def _show(self, name: str, each: ShownMessage | ShownCall) -> None:
        self.shown[name] = each
        if self._keeps_texts:
            return
        if isinstance(each, ShownCall):
            self.shown[name] = slim(each)
        if len(self.shown) > 2 * MOST_SHOWN:
            # Many a call never returns.
            ended = [
                name
                for name, each in self.shown.items()
                if isinstance(each, ShownCall) or not each.is_open
            ]
            drop_first(self.shown, ended[:-MOST_SHOWN])
            drop_first(self._texts, list(self._texts)[:-MOST_SHOWN])
            decided = [pause_id for pause_id, about in self.asked.items() if not about]
            drop_first(self.asked, decided[:-MOST_SHOWN])
            self.forgot = True

    def _own(self, row: StateUpdate) -> str:
        return f"{self._task_id}:{row.update_id}"

    def _part_id(self, text_id: str, generation: str) -> str:
        return f"{self._task_id}:{text_id}:{generation}"
