"""Where a run stands in its replay: what it knows of its journal, has emitted and was delivered.

A later run begins at the handler's start and passes everything that earlier runs have done. It may
not publish an update twice. It may not receive steering earlier than they did: its updates would
then contradict theirs. So the journal keeps, for each *lane*, how many updates of a
kind it has emitted, and how far it had come when steering was delivered to it.

A lane is one asyncio task of a handler. What happens in it has an order, and what happens in two of
them has none. The handler's own task is the lane without a name; the work of a step has lanes of
its own, for it is not done again once the step is recorded. Other lanes are found again by the
`branch` that they use, by their coroutine's name, and by what they do first, apart from the times
and random ids in it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from redis_state import codec
from redis_state.errors import InvalidTransition, JournalRewound, LeaseLost
from redis_state.primitives.lease import Held
from redis_state.transport.scripts import LaneState, Reply, Word, raw

log: logging.Logger = logging.getLogger(__name__)

_LANE = "lane:"
_DELIVERED = "took:"
_BETWEEN = "|"
# A handler that does not come by what it did before is given what waits for it after so long.
_PATIENCE_S = 5.0

# Times, random ids, measurements: what a replay may write differently.
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ][\d:.+Z-]*|\d+\.\d{3,}|(?=[a-f-]*\d)[0-9a-f-]{8,}"
    r"|(?=[A-F-]*\d)[0-9A-F-]{8,}|\d\d?:\d\d(?::\d\d)?(?:\.\d+)?"
)

# A steering event as its log keeps it: its id and its row.
SteeringRow = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Steering that a lane was given, and how many things it had done by then."""

    place: int
    rows: Sequence[SteeringRow]


@dataclass(frozen=True, slots=True)
class About:
    """How a lane is found again: the branch and the coroutine that it runs, what it does first.

    ``shape`` is what it does first without what differs in each run.
    """

    branch: str = ""
    coroutine: str = ""
    first: str = ""
    shape: str = ""

    @classmethod
    def of(cls, branch: str, coroutine: str, first: Any) -> About:
        """Describe a lane by its first deed, a value that JSON can hold."""
        text = codec.canonical(first).decode("utf-8", "replace")
        shape = _VOLATILE.sub("*", text)
        return cls(branch, coroutine, codec.fingerprint(text), codec.fingerprint(shape))


@dataclass(slots=True)
class Progress:
    """How many things were done that a replay does again, in this run and in earlier ones.

    Those are the steps, pauses, children and updates that were asked for.
    """

    place: int = 0
    reached: int = 0


class Lane:
    """One asyncio task of a handler: how far it has come in this run, and in earlier ones.

    ``all_lanes`` is the progress of all lanes of the handler, or of one step's work. The task in
    which that was begun goes by it: whatever the others do, they do after it has begun them.
    """

    def __init__(self, name: str, about: About, all_lanes: Progress, *, own: bool = False) -> None:
        self.name = name
        self.about = about
        self.deliveries: deque[Delivery] = deque()
        self._all = all_lanes
        self._mine = Progress()
        self._progress = all_lanes if own else self._mine
        self._emitted: Counter[str] = Counter()
        # Of earlier runs.
        self._recorded: Counter[str] = Counter()
        self._live = False
        self._withheld_at = -1
        self._withheld_since = 0.0
        self._passed_at = -1

    @property
    def place(self) -> int:
        """How far it has come in this run."""
        return self._progress.place

    def restore(self, reached: int, emitted: Mapping[str, int]) -> None:
        """Say how far it came in earlier runs."""
        self._mine.reached = reached
        self._all.reached += reached
        self._recorded = Counter(emitted)

    def state(self) -> LaneState:
        """Write how far it has come. A replay that is not there yet takes nothing back."""
        emitted = self._recorded | self._emitted
        mine = max(self._mine.place, self._mine.reached)
        value = [mine, emitted, list(astuple(self.about))]
        return LaneState(_LANE + self.name, codec.encode(value))

    def advance(self) -> None:
        """Count a step, a pause or a child that was asked for."""
        self._mine.place += 1
        self._all.place += 1

    def repeats(self, kind: str) -> bool:
        """Tell whether the next update of a kind is one that an earlier run has published."""
        return self._emitted[kind] < self._recorded[kind]

    def emit(self, kind: str) -> int:
        """Count an update; return its number among those of its kind."""
        self.advance()
        self._emitted[kind] += 1
        return self._emitted[kind]

    @property
    def is_due(self) -> bool:
        """Whether an earlier run was delivered something here."""
        return bool(self.deliveries) and self.deliveries[0].place <= self.place

    def due(self) -> Delivery | None:
        """Return what an earlier run was delivered here, once."""
        return self.deliveries.popleft() if self.is_due else None

    def withholds(self) -> bool:
        """Tell whether what has arrived must wait: an earlier run came further without it."""
        if self._live or self.place >= self._progress.reached:
            return False
        if self._withheld_at != self.place:
            self._withheld_at, self._withheld_since = self.place, monotonic()
        elif monotonic() - self._withheld_since > _PATIENCE_S:
            log.warning("a handler does not repeat what an earlier run did: it is steered at once")
            self.go_live()
        return not self._live

    def passes(self) -> bool:
        """Tell whether a wait is over at once, as it ended in vain in an earlier run. Once here."""
        if self._passed_at == self.place or not self.withholds():
            return False
        self._passed_at = self.place
        return True

    def go_live(self) -> None:
        """Give it what arrives from now on, wherever it stands."""
        self._live = True


class Replay:
    """What one run knows of its task's journal, and the lanes of its handler.

    Writes carry ``mark``: the lease's epoch and claim, and how many entries of the journal the run
    knows. A server that has fewer has lost some, and refuses.
    """

    def __init__(
        self, held: Held, journal: Mapping[str, Any] | None = None, *, known: int = 0
    ) -> None:
        self.known = known
        # Set when the server refused because its history went back.
        self.rewound: JournalRewound | None = None
        self.delivered: set[bytes] = set()
        self._held = held
        self._unclaimed: dict[str, Lane] = {}
        self._named: dict[str, Lane] = {}
        self._by_task: dict[str, WeakKeyDictionary[asyncio.Task[Any], Lane]] = {}
        self._numbers: Counter[str] = Counter()
        self._progress: defaultdict[str, Progress] = defaultdict(Progress)
        self._deliveries = 0
        self._read(journal or {})

    @property
    def epoch(self) -> int:
        """The run's own number."""
        return self._held.epoch

    @property
    def mark(self) -> bytes:
        """What a write of this run carries."""
        return raw(f"{self._held.epoch} {self.known} {self._held.owner}")

    def learn(self, reply: Reply, entries: int, *, what: str) -> None:
        """Remember how many entries there are, which is the reply's fact of this index.

        Errors: LeaseLost, JournalRewound, InvalidTransition, if the write was refused.
        """
        self.raise_refused(reply, what=what)
        if reply.word is Word.OK:
            self.known = max(self.known, int(reply.facts[entries]))

    def raise_refused(self, reply: Reply, *, what: str) -> None:
        """Raise what a refusal means. Errors: LeaseLost, JournalRewound, InvalidTransition."""
        if reply.word is Word.LOST:
            raise LeaseLost(what, epoch=self._held.epoch, current=int(reply.facts[0]))
        if reply.word is Word.REWOUND:
            self.rewound = JournalRewound(what, known=self.known, found=int(reply.facts[0]))
            raise self.rewound
        if reply.word is Word.MISSING:
            raise InvalidTransition(what, current="missing", wanted="recorded")

    def lane(self, scope: str, *, own: bool, branch: str = "", first: Any = None) -> Lane:
        """Return the lane of the running asyncio task, which is about to do ``first``.

        ``scope`` names the step whose work it is in, if it is in one; ``own`` tells that it is the
        task in which that work, or the handler, was begun.
        """
        task = None if own else _running_task()
        if task is None:
            return self.named(scope)
        lanes = self._by_task.setdefault(scope, WeakKeyDictionary())
        if task not in lanes:
            coroutine = getattr(task.get_coro(), "__qualname__", "")
            lanes[task] = self._claim(scope, About.of(branch, coroutine, first))
        return lanes[task]

    def named(self, name: str) -> Lane:
        """Return the lane of this name."""
        if name not in self._named:
            known = self._unclaimed.pop(name, None)
            self._named[name] = self._own(name) if known is None else known
        return self._named[name]

    def delivering(self, lane: Lane, rows: Sequence[SteeringRow]) -> tuple[str, bytes]:
        """Name and write the journal's entry of steering that a lane is given now."""
        self._deliveries += 1
        written = [[row_id.decode("latin-1"), row.decode("latin-1")] for row_id, row in rows]
        return f"{_DELIVERED}{self._deliveries}", codec.encode([lane.name, lane.place, written])

    def _claim(self, scope: str, about: About) -> Lane:
        prefix = scope + _BETWEEN
        alike = [
            lane
            for name, lane in self._unclaimed.items()
            if name.startswith(prefix)
            and (lane.about.branch, lane.about.coroutine) == (about.branch, about.coroutine)
        ]
        same = [lane for lane in alike if lane.about.first == about.first]
        for lane in same or [lane for lane in alike if lane.about.shape == about.shape]:
            del self._unclaimed[lane.name]
            return lane
        self._numbers[scope] += 1
        return Lane(f"{prefix}{self._numbers[scope]}", about, self._progress[scope])

    def _own(self, scope: str) -> Lane:
        return Lane(scope, About(), self._progress[scope], own=True)

    def _read(self, journal: Mapping[str, Any]) -> None:
        lanes = {
            _number(entry.removeprefix(_LANE)): value
            for entry, value in journal.items()
            if _is(entry, _LANE)
        }
        for (scope, number), (reached, emitted, about) in sorted(lanes.items()):
            all_lanes = self._progress[scope]
            name = f"{scope}{_BETWEEN}{number}"
            lane = Lane(name, About(*about), all_lanes) if number else self._own(scope)
            lane.restore(int(reached), emitted)
            self._unclaimed[lane.name] = lane
            self._numbers[scope] = max(self._numbers[scope], number)
        took = {
            int(entry.removeprefix(_DELIVERED)): value
            for entry, value in journal.items()
            if _is(entry, _DELIVERED)
        }
        for count, (name, place, written) in sorted(took.items()):
            rows = [(row_id.encode("latin-1"), row.encode("latin-1")) for row_id, row in written]
            self.delivered.update(row_id for row_id, _ in rows)
            self._deliveries = count
            if name not in self._unclaimed:
                self._unclaimed[name] = self._own(name)
            self._unclaimed[name].deliveries.append(Delivery(place, rows))


def _is(entry: str, kind: str) -> bool:
    return entry.startswith(kind)


def _number(name: str) -> tuple[str, int]:
    """Split a lane's name into its scope and its number, 0 for the scope's own."""
    scope, between, number = name.rpartition(_BETWEEN)
    return (scope, int(number)) if between and number.isdecimal() else (name, 0)


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
