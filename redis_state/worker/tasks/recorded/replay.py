"""The replay of a run: its journal, the updates it has emitted, and the steering it has received.

A later run begins at the handler's start and passes everything that earlier runs have done. It may
not publish an update twice. It may not receive steering earlier than they did: its updates would
then contradict theirs. So the journal keeps two things for each *lane*: how many updates of a kind
it has emitted, and how far it was when steering was delivered to it.

A lane is one asyncio task of a handler. The handler's own task is the lane without a name. The work
of a step has lanes of its own, because it is not repeated once the step is recorded. Other lanes
are matched by what is known of them, see `lanes`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any
from weakref import WeakKeyDictionary

from redis_state.errors import InvalidTransition, JournalRewound, LeaseLost
from redis_state.primitives.lease import HeldLease
from redis_state.scripts import Reply, ReplyCode
from redis_state.serialization import codec
from redis_state.worker.tasks.recorded.lanes import (
    LANE,
    Delivery,
    Lane,
    LaneIdentity,
    Progress,
    SteeringRow,
)
from redis_state.worker.tasks.recorded.rehearsal import Rehearsal

_DELIVERED = "took:"
_BETWEEN = "|"
# Each once, however often the handler runs. A run publishes updates and text again.
_DONE = ("step:", "pause:", "child:", "signal:", "request:", "undone:")


class Replay:
    """What one run knows of its task's journal, and the lanes of its handler.

    Writes carry ``mark``: the lease's epoch and claim, and how many entries of the journal the run
    knows. A server that has fewer has lost some, and refuses.
    """

    def __init__(
        self,
        held: HeldLease,
        journal: Mapping[str, Any] | None = None,
        *,
        known: int = 0,
        write: Callable[[Any], bytes] = codec.encode,
    ) -> None:
        # Writes where a lane stands, which may tell what it did first.
        self._write = write
        self.known: int = known
        self._known_at_start = known
        self._at_start = frozenset(journal or ())
        self._written: set[str] = set()
        # Set when the server refused because its history went back.
        self.rewound: JournalRewound | None = None
        # Set in a run that only repeats what is recorded.
        self.rehearsal: Rehearsal | None = None
        self.delivered: set[bytes] = set()
        # Called when the handler has done something: what was withheld may be due then.
        self.progressed: Callable[[], None] = lambda: None
        self._held = held
        self._unclaimed: dict[str, Lane] = {}
        self._alike: defaultdict[tuple[str, ...], deque[str]] = defaultdict(deque)
        self._named: dict[str, Lane] = {}
        self._by_task: dict[str, WeakKeyDictionary[asyncio.Task[Any], Lane]] = {}
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._progress: defaultdict[str, Progress] = defaultdict(Progress)
        self._deliveries = 0
        if journal:
            self._read(journal)

    @property
    def epoch(self) -> int:
        """The run's own number."""
        return self._held.epoch

    @property
    def mark(self) -> bytes:
        """What a write of this run carries."""
        held = self._held
        return f"{held.epoch} {self.known} {held.owner}".encode("utf-8", "surrogatepass")

    @property
    def done(self) -> int:
        """How many steps, pauses, children, messages and undone steps are recorded."""
        return sum(entry.startswith(_DONE) for entry in self._at_start | self._written)

    def learn(self, reply: Reply, entries: int, entry: str, *, what: str) -> None:
        """Remember an entry, and how many there are, which is the reply's fact of this index.

        The server's number is not enough: calls in flight while its history goes back carry an
        older mark, and fill the number up again where acknowledged entries are missing. Errors:
        LeaseLost, JournalRewound, InvalidTransition, if the write was refused.
        """
        if reply.word is not ReplyCode.OK:
            self.raise_refused(reply, what=what)
        else:
            if entry not in self._at_start:
                self._written.add(entry)
            acknowledged = self._known_at_start + len(self._written)
            self.known = max(self.known, int(reply.facts[entries]), acknowledged)

    def raise_refused(self, reply: Reply, *, what: str) -> None:
        """Raise what a refusal means. Errors: LeaseLost, JournalRewound, InvalidTransition."""
        if reply.word is ReplyCode.LOST:
            raise LeaseLost(what, epoch=self._held.epoch, current=int(reply.facts[0]))
        if reply.word is ReplyCode.REWOUND:
            self.rewound = JournalRewound(what, known=self.known, found=int(reply.facts[0]))
            raise self.rewound
        if reply.word is ReplyCode.MISSING:
            raise InvalidTransition(what, current="missing", wanted="recorded")

    def let_go(self) -> None:
        """Drop the lanes of a run that has ended: they refer back to this."""
        self._named.clear()
        self._unclaimed.clear()
        self._by_task.clear()

    def lane(self, scope: str, *, own: bool, branch: str = "", first: Any = None) -> Lane:
        """Return the lane of the running asyncio task, which is about to do ``first``.

        ``scope`` is the step whose work it is in, if it is in one. ``own`` is true for the asyncio
        task in which that work, or the handler, began.
        """
        task = None if own else _running_task()
        if task is None:
            return self.named(scope)
        lanes = self._by_task.setdefault(scope, WeakKeyDictionary())
        if task not in lanes:
            coroutine = getattr(task.get_coro(), "__qualname__", "")
            lanes[task] = self._claim(scope, LaneIdentity.of(branch, coroutine, first))
        return lanes[task]

    def named(self, name: str) -> Lane:
        """Return the lane of this name."""
        if name not in self._named:
            known = self._unclaimed.pop(name, None)
            self._named[name] = self._own(name) if known is None else known
        return self._named[name]

    def asyncio_tasks(self) -> set[asyncio.Task[Any]]:
        """Return the other asyncio tasks of the handler that have called something."""
        return {task for lanes in self._by_task.values() for task in lanes}

    def is_behind(self, scope: str, *, own: bool, branch: str = "") -> bool:
        """Return whether earlier runs came further than the running asyncio task.

        Where it cannot be known which lane is the task's, all that may be count.
        """
        task = _running_task()
        lanes: dict[asyncio.Task[Any], Lane] = dict(self._by_task.get(scope, {}))
        lane = None if own or task is None else lanes.get(task)
        if lane is not None and lane.was_found:
            return lane.is_behind
        if own or not branch:
            progress = self._progress[scope]
            return progress.place < progress.reached
        known = [each for name, each in self._unclaimed.items() if _scope_of(name, each) == scope]
        return any(
            each.is_behind
            for each in (*known, *lanes.values())
            if each.about.branch.startswith(branch) or branch.startswith(each.about.branch or " ")
        )

    def delivering(self, lane: Lane, rows: Sequence[SteeringRow]) -> tuple[str, bytes]:
        """Return name and value of the journal entry for steering that a lane receives now."""
        self._deliveries += 1
        written = [[row_id.decode("latin-1"), row.decode("latin-1")] for row_id, row in rows]
        return f"{_DELIVERED}{self._deliveries}", codec.encode([lane.name, lane.place, written])

    def _claim(self, scope: str, about: LaneIdentity) -> Lane:
        for alike in _likenesses(scope, about):
            names = self._alike[alike]
            while names:
                lane = self._unclaimed.pop(names.popleft(), None)
                if lane is not None:
                    return lane
        self._numbers[scope] += 1
        return self._make(f"{scope}{_BETWEEN}{self._numbers[scope]}", scope, about)

    def _own(self, scope: str) -> Lane:
        return self._make(scope, scope, LaneIdentity(), own=True)

    def _make(self, name: str, scope: str, about: LaneIdentity, *, own: bool = False) -> Lane:
        all_lanes = self._progress[scope]
        return Lane(name, about, all_lanes, progressed=self._report, write=self._write, own=own)

    def _report(self) -> None:
        self.progressed()

    def _read(self, journal: Mapping[str, Any]) -> None:
        lanes = {
            _number(entry.removeprefix(LANE), value[2]): value
            for entry, value in journal.items()
            if _is(entry, LANE)
        }
        for (scope, number), (reached, emitted, about) in sorted(lanes.items()):
            name = f"{scope}{_BETWEEN}{number}" if number else scope
            lane = self._make(name, scope, LaneIdentity(*about), own=not number)
            lane.restore(int(reached), emitted)
            self._unclaimed[name] = lane
            if number:
                for alike in _likenesses(scope, lane.about):
                    self._alike[alike].append(name)
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


def _number(name: str, about: Sequence[str]) -> tuple[str, int]:
    """Split a lane's name into its scope and its number, 0 for the scope's own.

    Only a numbered lane has something about it. The name of another may be any text of a user.
    """
    if not any(about):
        return name, 0
    scope, _, number = name.rpartition(_BETWEEN)
    return scope, int(number)


def _scope_of(name: str, lane: Lane) -> str:
    return _number(name, astuple(lane.about))[0]


def _likenesses(scope: str, about: LaneIdentity) -> list[tuple[str, ...]]:
    """Return the keys by which two lanes are taken for the same, the best first."""
    alike = (scope, about.branch, about.coroutine)
    return [("first", *alike, about.first), ("shape", *alike, about.shape)]


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
