"""The order of a review, for a caller that reports its progress."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a review: its name, and a few words on what it does."""

    name: str
    description: str

    def to_dict(self) -> dict[str, str]:
        """Return the stage as JSON values."""
        return asdict(self)


_STAGES = (
    Stage("parse", "read the document"),
    Stage("outline", "check the headings"),
    Stage("links", "check links and anchors"),
    Stage("sections", "look for long sections"),
    Stage("repeats", "look for repeated paragraphs"),
    Stage("contents", "propose a table of contents"),
)


def stages() -> tuple[Stage, ...]:
    """Return the stages in the order in which they run."""
    return _STAGES
