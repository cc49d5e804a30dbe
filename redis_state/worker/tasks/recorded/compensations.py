"""What a task's journal has of its compensations: what was registered, what was undone, and how.

A run writes it, see `execution.compensation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis_state.errors import CorruptState
from redis_state.models import TaskStatus
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.recorded.journal import Journals

REGISTERED = "undo:"
UNDONE = "undone:"
FAILING = "compensating"
OF_SOURCE = "of the source"
# There in a task's journal if its cancel is to be compensated, see `execution.compensation`.
ON_CANCEL = "undo on cancel"


@dataclass(frozen=True, slots=True)
class Compensation:
    """One compensation of a task, as its journal has it.

    ``name`` has its order among those of the name. ``state`` is ``registered``, ``undone`` or
    ``failed``; ``error`` is the class of the last attempt's error. In a fork, ``source`` is one of
    what its source has done, which the fork does not undo.
    """

    name: str
    state: str
    error: str | None
    on_cancel: bool


async def read_compensations(
    store: RedisStateStore, session_id: str, task_id: str
) -> list[Compensation]:
    """List a task's compensations in the order of their registration. Errors: CorruptState."""
    keys = store.tasks.keys(session_id, task_id)
    try:
        journal, _ = await Journals(store.base).read(keys)
        return compensations_of(journal)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptState(keys.journal, f"a note cannot be read: {error}") from None


def compensations_of(journal: Mapping[str, Any]) -> list[Compensation]:
    """List the compensations of a journal in the order of their registration."""
    found: list[tuple[int, Compensation]] = []
    for entry, note in journal.items():
        if entry.startswith(REGISTERED):
            place = entry.removeprefix(REGISTERED)
            end = journal.get(UNDONE + place)
            error = end["error"] if end else None
            state = "registered" if end is None else "undone" if error is None else "failed"
            if error == OF_SOURCE:
                state, error = "source", None
            one = Compensation(place.removeprefix("#"), state, error, note["on_cancel"])
            found.append((note["number"], one))
    return [one for _, one in sorted(found, key=lambda numbered: numbered[0])]


def of_source(
    journal: Mapping[str, Any], place: int | None, *, has_steps: bool
) -> Mapping[str, bytes]:
    """Make the entries of a fork for the compensations that stay its source's.

    Those are all that the source registered before ``place``, except before its first call.
    """
    made: dict[str, bytes] = {}
    for entry, note in journal.items():
        if not entry.startswith(REGISTERED) or not has_steps:
            continue
        at = note.get("at")
        if place is None or (at is not None and at < place):
            made[entry] = codec.encode(note)
            made[UNDONE + entry.removeprefix(REGISTERED)] = codec.encode({"error": OF_SOURCE})
    return made


def is_being_undone(journal: Mapping[str, Any]) -> bool:
    """Return whether what a task did is undone, or was."""
    return FAILING in journal


def is_undone(journal: Mapping[str, Any]) -> bool:
    """Return whether a task has failed and all its compensations have ended."""
    note = journal.get(FAILING)
    # No more of it than this: a process without the key asks, too.
    return note is not None and all(
        one.state != "registered"
        for one in compensations_of(journal)
        if note["status"] == TaskStatus.FAILED.value or one.on_cancel
    )
