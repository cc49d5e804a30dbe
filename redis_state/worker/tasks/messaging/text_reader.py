"""Put a task's published texts together again, row by row. Their rows: `text`."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis_state.models import StateUpdate


@dataclass(slots=True, eq=False)
class ShownText:
    """A text as a watcher has it. ``complete`` is False if it came too late for the first rows."""

    text_id: str
    generation: str
    part: int = 0
    ended: bool = False
    complete: bool = True
    rows: list[str] = field(default_factory=list[str], repr=False)

    @property
    def text(self) -> str:
        """All of it. Its rows are joined once; who shows a row at a time needs only ``rows[-1]``
        after each `TextReader.feed`.
        """
        if len(self.rows) > 1:
            self.rows[:] = ["".join(self.rows)]
        return self.rows[0] if self.rows else ""


class TextReader:
    """Put the texts of one task together from its updates, for who shows them.

    The rows of a text may be read from any place on, and again.
    """

    def __init__(self) -> None:
        self.texts: dict[str, ShownText] = {}

    def feed(self, update: StateUpdate) -> ShownText | None:
        """Take an update; return the text that it changes, None for any other update."""
        match update.content:
            case {
                "text": str(text),
                "text_id": str(text_id),
                "generation": str(generation),
                "part": int(part),
                **more,
            }:
                return self._add(text_id, generation, part, text, ended=bool(more.get("end")))
            case _:
                return None

    def _add(
        self, text_id: str, generation: str, part: int, text: str, *, ended: bool
    ) -> ShownText | None:
        shown = self.texts.get(text_id)
        if shown is None or shown.generation != generation:
            shown = ShownText(text_id, generation)
            self.texts[text_id] = shown
        if part <= shown.part:
            return None
        shown.complete = shown.complete and part == shown.part + 1
        shown.rows.append(text)
        shown.part, shown.ended = part, ended
        return shown
