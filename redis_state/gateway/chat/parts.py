"""What a task's updates say to a chat: texts, thoughts, calls of tools, state, pauses. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

TextKind: TypeAlias = Literal["text", "reasoning"]


@dataclass(frozen=True, slots=True)
class TextBegan:
    """A text begins, or continues after its end. ``author`` is the task, if it is another one."""

    text_id: str
    kind: TextKind
    author: str | None = None


@dataclass(frozen=True, slots=True)
class TextAdded:
    """More of a text that has begun."""

    text_id: str
    kind: TextKind
    text: str = field(repr=False)
    author: str | None = None


@dataclass(frozen=True, slots=True)
class TextEnded:
    """A text that has begun ends."""

    text_id: str
    kind: TextKind
    author: str | None = None


@dataclass(frozen=True, slots=True)
class TextDropped:
    """A text that was shown is not valid: its run died, or its step is retried."""

    text_id: str
    kind: TextKind


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A tool is called."""

    call_id: str
    tool: str
    arguments: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class ToolReturned:
    """A tool that was called has returned."""

    call_id: str
    result: Any = field(repr=False)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class StepBegan:
    """A numbered step of the task's progress begins."""

    name: str


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The step that has begun ends."""

    name: str


@dataclass(frozen=True, slots=True)
class StateGiven:
    """The whole state."""

    state: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class StateChanged:
    """One name of the state."""

    key: str
    value: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class PauseOpened:
    """A pause was opened that callers may decide."""

    pause_id: str
    name: str
    payload: Any = field(repr=False)
    about: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PauseDecided:
    """A pause that was opened is decided."""

    pause_id: str
    approved: bool
    actor: str


@dataclass(frozen=True, slots=True)
class ChildNamed:
    """The task has a child task; or that has ended, if the task waited for it. Each comes once.

    ``handler`` is None if the row that says it is not kept.
    """

    task_id: str
    handler: str | None
    ended: bool

    @property
    def about(self) -> dict[str, Any]:
        """What a client gets of it."""
        state = "ended" if self.ended else "running"
        return {"task_id": self.task_id, "handler": self.handler, "state": state}


@dataclass(frozen=True, slots=True)
class Halted:
    """The task waits: for a pause if one is open."""


@dataclass(frozen=True, slots=True)
class OtherUpdate:
    """An update of which a chat has no part of its own."""

    kind: str
    content: Any = field(repr=False)


Part: TypeAlias = (
    TextBegan
    | TextAdded
    | TextEnded
    | TextDropped
    | ToolCalled
    | ToolReturned
    | StepBegan
    | StepEnded
    | StateGiven
    | StateChanged
    | PauseOpened
    | PauseDecided
    | ChildNamed
    | Halted
    | OtherUpdate
)
