"""The part of a task's journal that a fork begins with.

What belongs to it for certain: recorded steps, decided pauses, children whose end is recorded,
signals and requests that were received, steering that the handler's own asyncio task took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state.errors import InvalidField
from redis_state.serialization import codec
from redis_state.worker.tasks.execution.code_changes import PATCH, VERSION
from redis_state.worker.tasks.recorded.compensations import of_source
from redis_state.worker.tasks.recorded.journal import (
    FAILED,
    PLACE,
    StepRecord,
    is_inside,
    joined_child,
    part_name,
    received,
    steps_of,
)

_KINDS = ("step:", "pause:", "child:")


@dataclass(frozen=True, slots=True)
class KeptPart:
    """The part of a journal that a fork begins with: entries as they are, and some of its own."""

    before: str | None
    names: Sequence[str]
    made: Mapping[str, bytes]
    has_steps: bool

    @classmethod
    def of(cls, journal: Mapping[str, Any], before: str | None) -> KeptPart:
        """Choose what is before an entry; all without one. Errors: InvalidField."""
        entry = None if before is None else _named(journal, before)
        place, is_before = _bounds(journal, entry)
        steps = [(name, note) for name, note in steps_of(journal) if is_before(name, note)]
        joined = {joined_child(name, journal) for name, _ in steps}
        others = [
            name
            for name, note in journal.items()
            if (_is_decided(name, note) and _is_before(note, place))
            or name in joined
            # The version of the handler's code, and the notices about it.
            or name == VERSION
            or name.startswith(PATCH)
            or (name.startswith(FAILED) and _is_before(note, place))
            or (name.startswith("took:") and not note[0] and (place is None or note[1] < place))
        ]
        others += [f"decided:{name}" for name in others if f"decided:{name}" in journal]
        messages = [
            name for name, at in received(journal).items() if place is None or 0 < at < place
        ]
        others += messages
        parts = [
            part_name(name, number).decode("utf-8", "surrogatepass")
            for name, note in steps
            for number in range(note.chunks)
        ]
        places = [PLACE + name for name in messages if PLACE + name in journal]
        names = [*(name for name, _ in steps), *others, *places, *parts]
        reached = journal.get("lane:", [0])[0] if place is None else place - 1
        made = {
            "versions": b"%d" % max((note.version for _, note in steps), default=0),
            "entries": b"%d" % (len(steps) + len(others)),
            # A replay gets nothing new before it has come this far.
            "lane:": codec.encode([max(int(reached), 0), {}, ["", "", "", ""]]),
            **of_source(journal, place, has_steps=bool(steps)),
        }
        return cls(entry, names, made, bool(steps))


def _named(journal: Mapping[str, Any], before: str) -> str:
    """Find the entry that is meant: itself, without its kind, or without its number.

    Errors: InvalidField.
    """
    entries = [name for name in journal if name.startswith(_KINDS)]
    for at in range(3):
        meant = [name for name in entries if names_of(name)[at] == before]
        if len(meant) > 1:
            some = ", ".join(meant[:5])
            raise InvalidField("before", f"is the name of {len(meant)} entries: one of {some}")
        if meant:
            return meant[0]
    raise InvalidField(
        "before", "nothing of this name is recorded; without it, all that is recorded is kept"
    )


def names_of(entry: str) -> tuple[str, str, str]:
    """Return how an entry can be named: itself, without its kind, without its number too."""
    named = entry.partition(":")[2]
    return entry, named, named.rpartition("#")[0].replace("##", "#")


def _bounds(
    journal: Mapping[str, Any], entry: str | None
) -> tuple[int | None, Callable[[str, StepRecord], bool]]:
    """Return the place of an entry, None for no bound, and a test for steps that are before it."""
    if entry is None:
        return None, _any_step
    found = journal[entry]
    place = found.place if isinstance(found, StepRecord) else int(found.get("place", 0))
    if isinstance(found, StepRecord):
        outer = [name for name, _ in steps_of(journal) if is_inside(entry, name)]
        if outer:
            raise InvalidField("before", f"is inside of {outer[-1]!r}: fork before that one")
        version = found.version
        return place, lambda name, note: note.version < version and not is_inside(name, entry)
    if not place:
        raise InvalidField("before", "was recorded by an earlier version: fork before a step")
    return place, lambda _name, note: 0 < note.place < place


def _any_step(_name: str, _note: StepRecord) -> bool:
    return True


def _is_decided(name: str, note: Any) -> bool:
    return name.startswith("pause:") and note.get("state") == "decided"


def _is_before(note: Mapping[str, Any], place: int | None) -> bool:
    return place is None or 0 < int(note.get("place", 0)) < place
