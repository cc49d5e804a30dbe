"""What a client of a chat was shown of one task, as far as it is known. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from redis_state.gateway.chat.parts import (
    ChildNamed,
    Halted,
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


class ShownTask:
    """Keep of a task's parts what a client that joins needs, and what changes if rows are lost.

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

    def go_back(self, kept: ShownTask) -> list[Part]:
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

    def _to_give(self, kept: ShownTask) -> Iterator[tuple[str, ShownMessage]]:
        for name, each in kept.shown.items():
            if not isinstance(each, ShownMessage):
                continue
            # What this does not know any more the client has, or it is too old for it.
            if name in self.shown or not (self.forgot or name in self._passed_texts):
                yield name, each
            else:
                each.is_open = False

    def _go_back(
        self, each: ShownMessage, kept: ShownTask, again: dict[str, ShownMessage]
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

    def _become(self, kept: ShownTask) -> None:
        self.shown = kept.shown
        self.state, self.has_state, self.step = kept.state, kept.has_state, kept.step
        self.halted, self.wrote_text, self.asked = kept.halted, kept.wrote_text, kept.asked
        self._texts, self._asked, self._named = kept._texts, kept._asked, kept._named
        self._passed_texts = kept._passed_texts
        if not self._keeps_texts:
            self.forget_texts()

    def _part_id(self, text_id: str, generation: str) -> str:
        return f"{self._task_id}:{text_id}:{generation}"

    def _keep_all(self, parts: Iterable[Part]) -> list[Part]:
        """Keep what parts say, once all are made; return them."""
        read = list(parts)
        for part in read:
            self._keep(part)
        return read

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
