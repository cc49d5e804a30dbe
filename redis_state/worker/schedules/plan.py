"""What to do with a schedule at a moment: which occurrences to submit, when to look again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Literal

from redis_state.worker.schedules.model import MOST_MISSED, Schedule
from redis_state.worker.schedules.triggers import Trigger

# An occurrence and what is decided about it are one step for so many at a time.
MOST_AT_ONCE = 50
# A look renews the schedule's lifetime, so it comes once a day also if nothing is due.
LONGEST_WAIT_MS = 86_400_000
# A clock that is set back by more was wrong before, so what it did then says nothing.
LARGEST_STEP_MS = 86_400_000

WhySkipped = Literal["missed", "running"]


@dataclass(frozen=True, slots=True)
class OccurrencePlan:
    """What a look at a schedule decides.

    ``occurrences`` are to be submitted, in order. ``after_ms`` is up to when all is settled then.
    ``check_ms`` is when to look again, None for never: it has ended.
    """

    occurrences: tuple[int, ...]
    after_ms: int
    check_ms: int | None
    skipped: tuple[int, WhySkipped] | None = None


def plan(
    schedule: Schedule, *, paused: bool, after_ms: int, now_ms: int, running: bool = False
) -> OccurrencePlan:
    """Decide about the occurrences that are due. ``running``: the last one's task is unfinished.

    Occurrences up to ``after_ms`` are never due again, also while the clock that was set back
    shows an earlier time. After a step back of more than a day it counts from the new time.
    """
    if paused:
        return OccurrencePlan((), after_ms, LONGEST_WAIT_MS)
    trigger = schedule.trigger
    if after_ms - now_ms > LARGEST_STEP_MS:
        after_ms = now_ms
    due, older = _due(schedule, trigger, after_ms, now_ms)
    skipped: tuple[int, WhySkipped] | None = None if older is None else (older, "missed")
    settled_ms = due[-1] if due else older or after_ms
    if due and schedule.overlap == "skip" and (running or len(due) > 1):
        skipped = (due[-1], "running")
        due = [] if running else due[:1]
    if len(due) > MOST_AT_ONCE:
        due = due[:MOST_AT_ONCE]
        return OccurrencePlan(tuple(due), due[-1], 0, skipped)
    return OccurrencePlan(tuple(due), settled_ms, _check_ms(trigger, settled_ms, now_ms), skipped)


def _due(
    schedule: Schedule, trigger: Trigger, after_ms: int, now_ms: int
) -> tuple[list[int], int | None]:
    """Return what is to be submitted, and the newest occurrence before that which is left out."""
    if now_ms <= after_ms:
        return [], None
    punctual_ms = max(after_ms, now_ms - schedule.grace_ms - 1)
    due = trigger.newest(punctual_ms, now_ms, most=MOST_MISSED)
    if len(due) == MOST_MISSED:
        # None that is in time is left out: the oldest come first, the rest at the next looks.
        due = list(islice(trigger.between(punctual_ms, now_ms), MOST_MISSED))
    elif schedule.missed == "all":
        most = max(schedule.max_missed, len(due))
        due = trigger.newest(after_ms, now_ms, most=most)
    elif schedule.missed == "latest":
        due = due or trigger.newest(after_ms, now_ms, most=1)
    before = trigger.newest(after_ms, due[0] - 1 if due else now_ms, most=1)
    return due, before[0] if before else None


def _check_ms(trigger: Trigger, settled_ms: int, now_ms: int) -> int | None:
    next_ms = trigger.next_after(settled_ms)
    if next_ms is None:
        return None
    return min(max(next_ms - now_ms, 0), LONGEST_WAIT_MS)
