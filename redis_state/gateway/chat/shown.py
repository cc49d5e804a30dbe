"""What a client of a chat was shown, as far as it is known. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from redis_state.gateway.chat.parts import TextKind, ToolReturned

# An open stream knows so many of the texts, calls and pauses that have ended.
MOST_SHOWN: Final = 1_000
_TOGETHER: Final = 256


@dataclass(slots=True)
class ShownMessage:
    """A text as far as it is known."""

    text_id: str
    kind: TextKind
    is_open: bool = True
    # In characters, also of a text that is not kept.
    size: int = 0
    # Joined by and by: each piece alone has more beside it than in it, and to join the whole at
    # each row is work by the square of a long text.
    blocks: list[str] = field(default_factory=list[str], repr=False)
    recent: list[str] = field(default_factory=list[str], repr=False)
    # The task that wrote it, if it is another one than the chat's.
    author: str | None = None

    @property
    def text(self) -> str:
        """The text as far as it is known."""
        return "".join((*self.blocks, *self.recent))

    def add(self, text: str, *, keep: bool) -> None:
        """Add a piece; count it only, if it is not to be kept."""
        self.size += len(text)
        if not keep:
            return
        self.recent.append(text)
        if len(self.recent) == _TOGETHER:
            self.blocks.append("".join(self.recent))
            self.recent.clear()

    def forget(self) -> None:
        """Keep the size alone."""
        self.blocks.clear()
        self.recent.clear()


@dataclass(slots=True)
class ShownCall:
    """A tool's call as far as it is known."""

    call_id: str
    tool: str
    arguments: Any = field(repr=False)
    returned: ToolReturned | None = None

    @property
    def is_open(self) -> bool:
        """Whether it has not returned."""
        return self.returned is None


def slim(call: ShownCall) -> ShownCall:
    """Return a call without its arguments and its result."""
    returned = call.returned and ToolReturned(call.call_id, None, failed=call.returned.failed)
    return ShownCall(call.call_id, call.tool, None, returned)


def drop_first(known: dict[str, Any], names: list[str]) -> None:
    """Drop what has these names."""
    for name in names:
        del known[name]


def keep_newest(known: dict[str, Any]) -> None:
    """Drop the oldest, if there are many."""
    # More than an open stream knows, so that what it knows is found.
    if len(known) > 4 * MOST_SHOWN:
        drop_first(known, list(known)[: -2 * MOST_SHOWN])
