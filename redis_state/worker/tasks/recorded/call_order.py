"""The order of a handler's calls: the first call of a run that earlier runs made otherwise.

Steps, pauses and children are found by their name, so another order of calls does no harm by
itself. But a handler that calls one thing after the other makes the same calls in each run. So each
record of such a stretch keeps the number of its call. A later run that comes to a new call, and has
not made an earlier one that is recorded, has changed.

That is certain only while the handler does one thing at a time. From the first two calls that
overlap, or the first call of another asyncio task, the order may depend on what is faster. From
there on calls have no number, and `unvisited` looks once the handler has returned. Nor does it mean
anything in the work of a step, or for a keyed step, whose order a model decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_state.worker.tasks.recorded.journal import StepRecord

# What has an order. Attributes, updates and messages may be added anywhere.
CALLS = ("step:", "pause:", "child:")


class CallOrder:
    """The calls of one run, in order, and those of earlier runs."""

    def __init__(self, journal: Mapping[str, Any]) -> None:
        self.sequential: bool = True
        self._journal = journal
        # What earlier runs called and this one has not called yet, in their order. Runs of two
        # versions of a handler may have given one number twice.
        self._left = {entry: number for number, entry in sorted(_numbered(journal))}
        self._count = 0
        self._numbers: dict[str, int] = {}
        self._running: set[str] = set()
        self._diverged: dict[str, str] = {}

    @property
    def ahead(self) -> bool:
        """Whether an earlier run called something that comes after the calls of this run."""
        return self.sequential and any(number > self._count for number in self._left.values())

    def begin(self, entry: str, *, own: bool, counted: bool) -> None:
        """Note a call of the handler, before its work. ``own`` is false in another asyncio task."""
        if self._running or not own:
            self.sequential = False
        self._running.add(entry)
        if not (self.sequential and counted):
            return
        self._count += 1
        self._numbers[entry] = self._count
        self._left.pop(entry, None)
        if entry not in self._journal and not self._diverged:
            missed = next(iter(self._left.items()), None)
            if missed is not None and missed[1] <= self._count:
                self._diverged[entry] = missed[0]

    def end(self, entry: str) -> None:
        """Note that a call has returned or failed."""
        self._running.discard(entry)

    def number(self, entry: str) -> int | None:
        """Return the number of a call, which its record keeps; None where order means nothing."""
        return self._numbers.get(entry)

    def missed_at(self, entry: str) -> str | None:
        """Return what is recorded in place of a new call, for the first such call of the run."""
        return self._diverged.get(entry)


def _numbered(journal: Mapping[str, Any]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for entry, note in journal.items():
        number = None
        if isinstance(note, StepRecord):
            number = note.number
        elif entry.startswith(CALLS) and isinstance(note, dict):
            number = note.get("number")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(number, int):
            found.append((number, entry))
    return found
