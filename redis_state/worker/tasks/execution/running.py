"""What a run does now: its steps that take longer than a moment, for those who look at the task.

A fast step costs nothing here. One timer for each run looks at what runs, and writes it down when a
step has become slow or has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TypeAlias

from redis_state.serialization import codec

# A step that runs longer is shown.
SLOW_S = 1.0

# A step, its attempt, and for how many ms it runs.
Shown: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class RunningStep:
    """A step that runs now, and when its attempt began, by the server's clock."""

    step: str
    attempt: int
    began_at: datetime


class RunningSteps:
    """The steps that a run is doing. ``show`` gets those that are slow, whenever they change."""

    def __init__(self, show: Callable[[list[Shown]], None]) -> None:
        self._show = show
        self._steps: dict[str, tuple[int, float]] = {}
        self._shown: frozenset[tuple[str, int]] = frozenset()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, entry: str, attempt: int) -> None:
        """Count an attempt of a step that begins."""
        self._steps[entry] = attempt, monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._look)

    def end(self, entry: str) -> None:
        """Count it out."""
        self._steps.pop(entry, None)

    def stop(self) -> None:
        """Show nothing any more, and let go of who was shown it."""
        self._show = _nobody
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer, now = None, monotonic()
        slow = [
            (entry, attempt, round((now - began) * 1000))
            for entry, (attempt, began) in self._steps.items()
            if now - began >= SLOW_S
        ]
        found = frozenset((entry, attempt) for entry, attempt, _ in slow)
        if found != self._shown:
            self._shown = found
            self._show(slow)
        if self._steps or self._shown:
            self._timer = asyncio.get_running_loop().call_later(SLOW_S, self._look)


def _nobody(_: list[Shown]) -> None:
    """Show nothing."""


def write_running(steps: Iterable[Shown]) -> bytes:
    """Write the steps that run now."""
    return codec.encode([[entry.partition(":")[2], *facts] for entry, *facts in steps])


def read_running(fields: Mapping[str, bytes]) -> tuple[RunningStep, ...]:
    """Read what the current run of a task wrote of them. Errors: ValueError, TypeError."""
    written = fields.get("doing")
    if not written or fields["status"] != b"RUNNING":
        return ()
    attempts, at_ms, steps = codec.decode(written)
    if attempts != int(fields.get("attempts") or 0):
        return ()
    return tuple(
        RunningStep(step, attempt, datetime.fromtimestamp((at_ms - for_ms) / 1000, UTC))
        for step, attempt, for_ms in steps
    )
