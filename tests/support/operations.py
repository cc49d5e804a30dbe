"""Mixed operations of many processes on many sessions, drawn from a seed, and what they leave.

Every process draws the same operations and does those that are its own. So what all of them leave
is known beforehand, except how the rows of different processes lie between each other.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.hosts import Host

KINDS = {
    "event": 20,
    "update": 20,
    "steering": 12,
    "planner": 12,
    "task": 10,
    "memory": 6,
    "trajectory": 5,
    "binding": 5,
    "retire": 2,
    "pause": 4,
    "read": 4,
}
RESULTS: tuple[Any, ...] = (None, 0, "", [], {}, False, {"a": [1]}, 2**70, "text")
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Operation:
    """One call: who makes it, of what kind, on which session; ``n`` is its own number.

    A row that is ``shared`` is saved by two processes.
    """

    n: int
    worker: int
    kind: str
    session: str
    at: float
    shared: bool = False


def draw(seed: int, *, sessions: int, workers: int, operations: int) -> list[Operation]:
    """Draw the operations of all processes."""
    rng = random.Random(seed)
    kinds = rng.choices(list(KINDS), list(KINDS.values()), k=operations)
    drawn: list[Operation] = []
    for n, kind in enumerate(kinds):
        session = f"session:{rng.randrange(sessions)}"
        worker, at = rng.randrange(workers), rng.random()
        shared = kind in {"event", "update", "steering"} and rng.random() < 0.1
        drawn.append(Operation(n, worker, kind, session, at, shared))
        if shared:
            drawn.append(Operation(n, (worker + 1) % workers, kind, session, at, shared))
        elif kind in {"event", "update", "steering"} and rng.random() < 0.1:
            drawn.append(drawn[-1])
    return drawn


async def perform(host: Host, operation: Operation) -> None:
    """Make one call."""
    await getattr(_Calls(host), operation.kind)(operation)


class _Calls:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._store = host.store

    async def event(self, each: Operation) -> None:
        await self._store.save_event(
            self._host.event(each.at, stated(each), trace_id=f"trace {each.session}")
        )

    async def update(self, each: Operation) -> None:
        await self._store.save_update(
            self._host.update(
                f"u{each.n}", stated(each), session_id=each.session, task_id=topic(each)
            )
        )

    async def steering(self, each: Operation) -> None:
        await self._store.save_steering(
            self._host.steering(
                f"e{each.n}", stated(each), session_id=each.session, task_id=topic(each)
            )
        )

    async def planner(self, each: Operation) -> None:
        event = self._host.planner_event(each.at, extra=stated(each))
        await self._store.save_planner_event(f"trace {each.session}", event)

    async def task(self, each: Operation) -> None:
        await self._store.save_task(task_of(self._host, each))

    async def memory(self, each: Operation) -> None:
        await self._store.save_memory_state(own(each, 3), {"n": each.n})

    async def trajectory(self, each: Operation) -> None:
        trajectory = self._host.types.Trajectory(query=str(each.n), metadata={"n": each.n})
        await self._store.save_trajectory(own(each, 4), each.session, trajectory)

    async def binding(self, each: Operation) -> None:
        await self._store.save_remote_binding(binding_of(self._host, each))

    async def retire(self, each: Operation) -> None:
        await self._store.mark_binding_terminal(
            trace_id=f"trace {each.session}", context_id=None, task_id=own(each, 4)
        )

    async def pause(self, each: Operation) -> None:
        await self._store.save_planner_state(f"token {each.n}", {"n": each.n})

    async def read(self, each: Operation) -> None:
        """Read while others write: whatever is there already is there once, and in order."""
        updates = await self._store.list_updates(each.session, limit=100_000)
        ids = [update.update_id for update in updates]
        assert len(set(ids)) == len(ids)
        for of_one in by_worker([update.content for update in updates]).values():
            assert of_one == sorted(of_one)
        if ids:
            after = await self._store.list_updates(each.session, since_id=ids[0], limit=100_000)
            assert [update.update_id for update in after][: len(ids) - 1] == ids[1:]


def stated(each: Operation) -> dict[str, Any]:
    """Say in a row whose it is; a shared one is nobody's."""
    return {"worker": None if each.shared else each.worker, "n": each.n}


def topic(each: Operation) -> str:
    """Name one of a session's three tasks."""
    return f"task {each.n % 3}"


def own(each: Operation, most: int) -> str:
    """Name one of a few things that only this process changes."""
    return f"{each.session} worker {each.worker} {each.n % most}"


def task_of(host: Host, each: Operation) -> Any:
    """Make the task that an operation saves."""
    statuses = list(host.types.TaskStatus)
    moment = EPOCH + timedelta(seconds=each.n)
    return host.task(
        own(each, 5),
        each.session,
        status=statuses[each.n % len(statuses)],
        priority=each.n,
        result=RESULTS[each.n % len(RESULTS)],
        context_snapshot=host.types.TaskContextSnapshot(
            session_id=each.session, task_id="task", spawned_at=EPOCH
        ),
        created_at=EPOCH,
        updated_at=moment,
    )


def binding_of(host: Host, each: Operation) -> Any:
    """Make the binding that an operation saves."""
    return host.binding(
        own(each, 4),
        trace_id=f"trace {each.session}",
        context_id=None,
        router_session_id=each.session,
        remote_skill=f"skill {each.worker}",
        metadata={"n": each.n},
    )


def by_worker(rows: list[Any]) -> dict[Any, list[int]]:
    """Sort what rows say by whose they are; nobody's are left out."""
    found: dict[Any, list[int]] = defaultdict(list)
    for row in rows:
        if row["worker"] is not None:
            found[row["worker"]].append(row["n"])
    return dict(found)


Rows = dict[Any, dict[int, Operation]]


def _rows() -> Rows:
    return defaultdict(dict)


@dataclass
class Model:
    """What must be left: per list the rows in the order drawn, each number once."""

    events: Rows = field(default_factory=_rows)
    updates: Rows = field(default_factory=_rows)
    steering: Rows = field(default_factory=_rows)
    planner: Rows = field(default_factory=_rows)
    tasks: dict[str, dict[str, Operation]] = field(default_factory=lambda: defaultdict(dict))
    memory: dict[str, int] = field(default_factory=dict[str, int])
    traces: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    bindings: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    pauses: set[int] = field(default_factory=set[int])

    def apply(self, host: Host, each: Operation) -> None:
        """Do one operation on the model."""
        session = each.session
        logs = {"event": self.events, "update": self.updates, "steering": self.steering}
        if each.kind in logs:
            logs[each.kind][session].setdefault(each.n, each)
        elif each.kind == "planner":
            self.planner[session][each.n] = each
        elif each.kind == "task":
            self.tasks[session][own(each, 5)] = each
        elif each.kind == "memory":
            self.memory[own(each, 3)] = each.n
        elif each.kind == "trajectory":
            self.traces[session].pop(own(each, 4), None)
            self.traces[session][own(each, 4)] = each.n
        elif each.kind == "binding":
            self.bindings[session][own(each, 4)] = binding_of(host, each)
        elif each.kind == "retire":
            found = self.bindings[session].get(own(each, 4))
            if found is not None:
                found.is_terminal = True
        elif each.kind == "pause":
            self.pauses.add(each.n)
