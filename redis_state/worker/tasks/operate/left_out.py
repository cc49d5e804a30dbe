"""What a retry leaves out of a task's journal: what ended the task.

It is the last thing there, or the task's error names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from redis_state.errors import PauseTimeout
from redis_state.models import TaskStatus
from redis_state.worker.tasks.recorded.journal import (
    FAILED,
    PLACE,
    failures_of,
    joined_child,
    received,
    steps_of,
)
from redis_state.worker.tasks.recorded.rehearsal import is_of_failure
from redis_state.worker.tasks.waitpoints.pause_model import pause_name

_NOT_COMPLETE = (TaskStatus.FAILED.value, TaskStatus.CANCELLED.value)


def joined_children(journal: Mapping[str, Any], entries: Iterable[str]) -> dict[str, str]:
    """Find the steps that record the end of a child; each with the child's id."""
    found = {entry: joined_child(entry, journal) for entry in entries}
    return {entry: journal[child]["task"] for entry, child in found.items() if child is not None}


def depends_on_why(journal: Mapping[str, Any]) -> bool:
    """Return whether a retry leaves out what failed the task, which its error names."""
    return (
        bool(joined_children(journal, (entry for entry, _ in steps_of(journal))))
        or bool(failures_of(journal))
        or any(_is_timed_out(entry, note) for entry, note in journal.items())
        or any(journal[entry] is None for entry in received(journal))
    )


def _is_timed_out(entry: str, note: Any) -> bool:
    return entry.startswith("pause:") and note.get("timed_out") == "fail"


def is_failed_end(result: Any) -> bool:
    """Return whether a recorded result is the end of a child that is not complete."""
    match result:
        case {"status": str(status)}:
            return status in _NOT_COMPLETE
        case _:
            return False


def overdue_pauses(journal: Mapping[str, Any], error: str, *, beyond: Collection[str]) -> list[str]:
    """Find the pauses that timed out and failed the task, with what was learned of them.

    Those behind the last recorded step, and the last of each name that the error has. An earlier
    one of the name has the handler handled: what it did then is recorded.
    """
    last = max((note.place for entry, note in steps_of(journal) if entry not in beyond), default=0)
    places: dict[str, dict[str, int]] = {}
    for entry, note in journal.items():
        if _is_timed_out(entry, note):
            text = str(PauseTimeout(pause_name(entry, note)))
            places.setdefault(text, {})[entry] = int(note.get("place", 0))
    found: list[str] = []
    for text, alike in places.items():
        named = max(alike.values()) if text in error else None
        for entry, place in alike.items():
            if place > last or place == named:
                found += [entry, f"decided:{entry}"]
    return found


def failed_steps(journal: Mapping[str, Any], error: str, *, beyond: Collection[str]) -> list[str]:
    """Find the steps that failed behind the last recorded one, and those that failed the task.

    Of keyed steps all: which of them did is in no text, as an agent or its tools have words of
    their own for it.
    """
    last = max((note.place for entry, note in steps_of(journal) if entry not in beyond), default=0)
    found: list[str] = []
    for entry, note in failures_of(journal).items():
        match note["error"]:
            case [str(kind), str(text)]:
                failed_it = is_of_failure(error, kind, text)
            case _:  # sealed, it cannot be compared
                failed_it = False
        if failed_it or note.get("keyed") or note["place"] > last:
            found.append(FAILED + entry)
    return found


def missed_messages(journal: Mapping[str, Any], error: str) -> list[str]:
    """Find the message whose timeout failed the task: the last that did not come.

    Of a group, whose error names others too, all that did not come behind the last recorded step.
    """
    if "ReceiveTimeout" not in error:
        return []
    places = {entry: place for entry, place in received(journal).items() if journal[entry] is None}
    if not error.startswith("ReceiveTimeout"):
        step = max((note.place for _, note in steps_of(journal)), default=0)
        places = {entry: place for entry, place in places.items() if place > step}
    elif places:
        last = max(places, key=lambda entry: places[entry])
        places = {last: places[last]}
    return [name for entry in places for name in (entry, PLACE + entry)]
