"""A trial: what was asked of the store under faults, what became of it, and the row that tells.

Every operation ends in one of three ways. ``ok`` was acknowledged, and must be there. ``fail`` was
refused, and must not be there. ``unknown`` may be there or not; nobody may count on either.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from redis_state.errors import BackendUnavailable, OutcomeUnknown

How = Literal["ok", "fail", "unknown"]
# Operation, how it ended, and from when to when, in seconds of one clock.
Event = tuple[str, How, float, float]


@dataclass(frozen=True, slots=True)
class Size:
    """How large the trials are: 1 is full size."""

    factor: float

    @property
    def full(self) -> bool:
        """Whether the promised figures are to be met to the letter."""
        return self.factor >= 1

    @property
    def tolerance(self) -> float:
        """How many times longer than promised things may take: a shared machine may be busy."""
        return 1.0 if self.full else 5.0

    def of(self, number: int, *, least: int = 1) -> int:
        """Scale a number."""
        return max(least, round(number * self.factor))


class History:
    """What was asked, and how each operation ended."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = list(events)

    def note(self, operation: str, how: How, began: float, ended: float | None = None) -> None:
        """Note an operation that has ended now, unless told when."""
        self.events.append((operation, how, began, time.monotonic() if ended is None else ended))

    @contextmanager
    def doing(self, operation: str) -> Generator[None, None, None]:
        """Do an operation; an unreachable server ends it as unknown, or as failed if unsent."""
        began = time.monotonic()
        try:
            yield
        except OutcomeUnknown:
            self.note(operation, "unknown", began)
        except BackendUnavailable:
            self.note(operation, "fail", began)
        else:
            self.note(operation, "ok", began)

    def merge(self, events: Iterable[Iterable[Any]]) -> None:
        """Take in what other processes of this machine noted."""
        self.events += [(name, how, began, ended) for name, how, began, ended in events]

    def count(self, how: How) -> int:
        """Count the operations that ended this way."""
        return Counter(event[1] for event in self.events)[how]

    def longest_outage_s(self) -> float:
        """Tell the longest time without an acknowledgement while somebody waited for one."""
        events = sorted(self.events, key=lambda event: event[3])
        # Since when the earliest of these and the later ones has been waited for.
        since = list[float]()
        earliest = float("inf")
        for event in reversed(events):
            earliest = min(earliest, event[2])
            since.append(earliest)
        since.reverse()
        longest, last, first = 0.0, float("-inf"), 0
        for place, (_, how, _, ended) in enumerate(events):
            if how == "ok":
                longest = max(longest, ended - max(last, since[first]))
                last, first = ended, place + 1
        return longest


@dataclass(slots=True)
class Trial:
    """One trial, and its row in the report. It is ok once it was concluded without a problem."""

    name: str
    size: Size
    history: History = field(default_factory=History)
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    faults: int = 0
    lost: int = 0
    duplicated: int = 0
    problems: list[str] = field(default_factory=list[str])
    concluded: bool = False
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def expect(self, held: object, otherwise: str) -> None:
        """Note a problem unless something held. All of them are told in the end."""
        if not held:
            self.problems.append(otherwise)

    def conclude(self) -> None:
        """Fail if anything was lost, doubled or otherwise wrong, or if no fault fired."""
        self.expect(self.faults > 0, "no fault fired")
        self.expect(self.history.count("ok") > 0, "nothing was acknowledged")
        self.expect(self.lost == 0, f"lost {self.lost}")
        self.expect(self.duplicated == 0, f"{self.duplicated} twice")
        self.concluded = True
        assert not self.problems, f"{'; '.join(self.problems)} ({self.row()})"

    def row(self) -> dict[str, Any]:
        """Make the row of the report."""
        return {
            "name": self.name,
            "acknowledged": self.history.count("ok"),
            "failed": self.history.count("fail"),
            "unknown": self.history.count("unknown"),
            "lost": self.lost,
            "duplicated": self.duplicated,
            "longest_outage_s": round(self.history.longest_outage_s(), 3),
            "faults": self.faults,
            "fault_fired": self.faults > 0,
            "ok": self.concluded and not self.problems,
            "seconds": round(self.seconds, 1),
            "parameters": self.parameters,
            "figures": self.figures,
            "problems": self.problems,
        }

    def write_history(self, folder: Path) -> None:
        """Write each operation as a line: name, how it ended, from when to when."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(event) for event in self.history.events)
        path = folder / f"{self.name.replace(' ', '-')}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Draw the report as lines of text."""
    heads = {
        "name": "trial",
        "acknowledged": "acknowledged",
        "unknown": "unknown",
        "lost": "lost",
        "duplicated": "duplicated",
        "longest_outage_s": "outage s",
        "faults": "faults",
        "seconds": "seconds",
        "ok": "ok",
    }
    shown = [list(heads.values())]
    shown += [[_shown(row[key]) for key in heads] for row in rows]
    widths = [max(len(line[place]) for line in shown) for place in range(len(heads))]
    lines = list[str]()
    for line in shown:
        first, *rest = zip(line, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]
        lines.append("  ".join(cells))
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,}" if isinstance(value, int) else str(value)
