"""Judge by what handlers wrote down how many of them ran at a time.

A handler counts from its first act to its last one, or to its process's death, which the trial
writes down once the process is killed. A permit is taken before and free after, so at no time may
more handlers count than the limit.

A run that loses its lease while its process lives (it was stopped) may go on until its heartbeat
or its next write is refused. That is all that is promised of it. So it counts up to where it was
when it began the last part whose record the server took: it may be stalled right after that
record, or before its first act, and write its line much later. A run that nobody took over counts
to its end, also if its process was stopped meanwhile: it went on under its own permit. One whose
process was stopped and then killed counts up to the stop: its lease may have run out by then.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# The group of all handlers: the queue.
ALL = "all"


def within(group: str) -> tuple[str, ...]:
    """Return the groups in which a handler of a group counts: m/0 is a session of the tenant m."""
    tenant, slash, _ = group.partition("/")
    return (tenant, group) if slash else (group,)


@dataclass(slots=True)
class Run:
    """One run of a task. Its moments are numbers of lines."""

    task: str
    epoch: int
    worker: str
    group: str
    begin: int
    # Where it was surely under its lease; -1: nowhere.
    held: int = -1
    end: int | None = None
    lost_alive: bool = False
    died: bool = False
    stopped: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it surely ran under its lease."""
        return not self.lost_alive or self.held >= 0

    @property
    def counts_to(self) -> int:
        """The line up to which it counts."""
        assert self.end is not None
        if self.lost_alive:
            return self.held
        return self.stopped if self.died and self.stopped is not None else self.end


class Witness:
    """What the lines say."""

    def __init__(self, lines: Sequence[Sequence[Any]], groups: dict[str, int]) -> None:
        self.problems: list[str] = []
        self.most: Counter[str] = Counter()
        self.runs: dict[tuple[str, int], Run] = {}
        self.deaths: dict[str, int] = {}
        self._limits: dict[int, tuple[str, int]] = {}
        self._parts: dict[tuple[str, int, int], int] = {}
        self._first = dict(groups)
        for place, (what, *facts) in enumerate(lines):
            getattr(self, f"_{what}")(place, *facts)
        self._end_the_dead()
        self._find_lost()
        self._count()

    @property
    def lost_alive(self) -> list[Run]:
        """The runs that went on without a lease."""
        return [run for run in self.runs.values() if run.lost_alive]

    def killed_while_running(self) -> int:
        """Count the runs whose process was killed."""
        deaths = set(self.deaths.values())
        return sum(run.end in deaths for run in self.runs.values())

    def wrong_turns(self, tasks: Sequence[str]) -> Iterator[str]:
        """Tell which tasks of a session ran beside the one before, or not in its order."""
        runs = defaultdict[str, list[Run]](list)
        for run in self.runs.values():
            runs[run.task].append(run)
        for before, after in pairwise(tasks):
            ended = max(run.counts_to for run in runs[before])
            if min(run.begin for run in runs[after]) < ended:
                yield f"{after} began before {before} ended"

    def _begin(self, place: int, task: str, epoch: int, worker: str, group: str) -> None:
        if worker in self.deaths:
            self.problems.append(f"{worker} wrote after its death")
        self.runs[task, epoch] = Run(task, epoch, worker, group, place)

    def _part(self, place: int, task: str, epoch: int, part: int) -> None:
        self._parts[task, epoch, part] = place

    def _held(self, _place: int, task: str, epoch: int, part: int) -> None:
        self.runs[task, epoch].held = self._parts[task, epoch, part]

    def _end(self, place: int, task: str, epoch: int, _how: str) -> None:
        self.runs[task, epoch].end = place

    def _dead(self, place: int, worker: str) -> None:
        self.deaths[worker] = place

    def _stopped(self, place: int, worker: str) -> None:
        for run in self.runs.values():
            if run.worker == worker and run.end is None and run.stopped is None:
                run.stopped = place

    def _limit(self, place: int, group: str, limit: int) -> None:
        self._limits[place] = (group, limit)

    def _end_the_dead(self) -> None:
        for run in self.runs.values():
            if run.end is None:
                run.end = self.deaths.get(run.worker, -1)
                run.died = run.end >= 0
                if not run.died:
                    self.problems.append(f"{run.task} neither ended nor died")

    def _find_lost(self) -> None:
        """Find the runs that another run of their task followed, though they were not killed."""
        for before, after in pairwise(sorted(self.runs.values(), key=lambda r: (r.task, r.epoch))):
            if before.task != after.task:
                continue
            died = before.end == self.deaths.get(before.worker)
            before.lost_alive = not (died and before.end < after.begin)  # type: ignore[operator]

    def _count(self) -> None:
        moves: list[tuple[int, int, Run]] = []
        for run in filter(lambda run: run.counts, self.runs.values()):
            moves += [(run.begin, 1, run), (run.counts_to, -1, run)]
        running: Counter[str] = Counter()
        limits = dict(self._first)
        changes = sorted(self._limits.items())
        for place, step, run in sorted(moves, key=lambda move: (move[0], -move[1])):
            while changes and changes[0][0] < place:
                group, limit = changes.pop(0)[1]
                limits[group] = limit
            for group in (ALL, *within(run.group)):
                running[group] += step
                self.most[group] = max(self.most[group], running[group])
                most = limits.get(group)
                if step > 0 and most is not None and running[group] > most:
                    more = f"{running[group]} of {group} ran at a time, not {most}"
                    self.problems.append(f"{more} (line {place})")
