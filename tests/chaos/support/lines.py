"""Judge a session's line by its own log of updates, whose order is that of the things.

What is read is each task's statuses, in the order of all tasks of the session, and what the caller
of each asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_TERMINAL = {"COMPLETE", "FAILED", "CANCELLED"}


@dataclass(slots=True)
class _Line:
    """What is known of a session's tasks up to a place of the log."""

    statuses: dict[str, str] = field(default_factory=dict[str, str])
    begun: set[str] = field(default_factory=set[str])
    # By whom each was interrupted, or replaced before it began.
    interrupted: dict[str, str] = field(default_factory=dict[str, str])
    replaced: dict[str, str] = field(default_factory=dict[str, str])

    def unfinished(self) -> list[str]:
        """List the tasks that are not terminal."""
        return [task for task, status in self.statuses.items() if status not in _TERMINAL]


def wrong_line(log: Sequence[tuple[str, str]], policies: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong in a log of task and status, by the policy of each task."""
    line = _Line()
    for task, status in log:
        before = line.statuses.get(task)
        if before in _TERMINAL:
            yield f"{task} is {status} after it was {before}"
        if before is None:
            yield from _came(line, task, policies.get(task))
        if status == "RUNNING":
            line.begun.add(task)
            if task in line.replaced:
                yield f"{task} began, and {line.replaced[task]} had replaced it"
        by = line.interrupted.get(task)
        if status == "COMPLETE" and by in line.begun:
            yield f"{task} was completed after {by} had begun in its place"
        line.statuses[task] = status
    yield from (f"{task} is {line.statuses[task]} for ever" for task in line.unfinished())


def _came(line: _Line, task: str, policy: str | None) -> Iterator[str]:
    """Take note of what a new task does to those before it."""
    if policy is None:
        yield f"{task} was asked for by nobody"
    for other in line.unfinished():
        if policy == "reject":
            yield f"{task} was not rejected, and {other} was unfinished"
        elif policy == "interrupt" and other in line.begun:
            line.interrupted.setdefault(other, task)
        elif policy == "replace" and other not in line.begun:
            line.replaced.setdefault(other, task)
