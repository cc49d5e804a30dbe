"""Worker processes under faults, and what the store's own notes say of their tasks."""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus, UpdateType
from tests.support.processes import children
from tests.support.processes.pools import SESSION, queue_of
from tests.support.servers.faults import start_process

_TERMINAL = {status.value for status in TaskStatus if status.is_terminal}
_MOVES = {
    ("PENDING", "RUNNING"),
    ("RUNNING", "RUNNING"),
    ("RUNNING", "PENDING"),
    ("RUNNING", "PAUSED"),
    ("PAUSED", "PENDING"),
    *(("RUNNING", status) for status in _TERMINAL),
    ("PENDING", "CANCELLED"),
    ("PAUSED", "CANCELLED"),
}


class Crew:
    """Worker processes by name. Those that are left are killed in the end."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *,
        lease_s: float,
        program: str = "chaos_worker",
        **options: Any,
    ) -> None:
        self._program = program
        self.processes: dict[str, children.Process] = {}
        self._argument = {
            "url": settings.url.get_secret_value(),
            "namespace": settings.namespace,
            "queue": queue_of(settings),
            "folder": str(folder),
            "lease_s": lease_s,
            **options,
        }
        self._started = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.processes):
            await self.kill(name)

    async def start(self, **more: Any) -> str:
        """Start a worker; return its name."""
        self._started += 1
        name = f"w{self._started}"
        argument = self._argument | {"name": name} | more
        self.processes[name] = await start_process(self._program, argument)
        return name

    async def kill(self, name: str) -> int:
        """Kill a worker with no chance to do anything; return its status."""
        process = self.processes.pop(name)
        await children.end(process)
        assert process.returncode is not None
        return process.returncode

    def report(self, name: str, what: signal.Signals) -> None:
        """Send a signal."""
        self.processes[name].send_signal(what)

    def alive(self) -> list[str]:
        """Name the workers that have not ended."""
        return [name for name, process in self.processes.items() if process.returncode is None]


@dataclass(frozen=True, slots=True)
class StatusRow:
    """A status that a worker published for a task, with the server's time."""

    status: str
    worker: str
    at_ms: int


async def trails(store: RedisStateStore, session: str = SESSION) -> dict[str, list[StatusRow]]:
    """Read the statuses that were published for the tasks of a session, in order."""
    found: dict[str, list[StatusRow]] = defaultdict(list)
    cursor: str | None = None
    while True:
        page = await store.read_updates(session, after=cursor)
        for entry in page.entries:
            if entry.value.update_type is UpdateType.STATUS_CHANGE:
                content: dict[str, Any] = entry.value.content
                at_ms = int(entry.cursor.split("-")[1])
                reported = StatusRow(content["status"], content.get("worker", ""), at_ms)
                found[entry.value.task_id].append(reported)
        cursor = page.cursor
        if page.at_end:
            return found


def wrong_move(trail: list[StatusRow]) -> str | None:
    """Name the first move of a task that there is no arrow for.

    The first state may be missing: a client may die between writing a task and telling of it.
    """
    states = [reported.status for reported in trail]
    if states and states[0] not in ("PENDING", "RUNNING", "CANCELLED"):
        return f"begins as {states[0]}"
    for move in itertools.pairwise(states):
        if move not in _MOVES:
            return f"{move[0]} to {move[1]}"
    return None


def ends(trail: list[StatusRow]) -> int:
    """Count how often a task has ended."""
    return sum(reported.status in _TERMINAL for reported in trail)


def takeovers_s(trail: list[StatusRow], killed_ms: dict[str, int]) -> list[float]:
    """Tell how long after its worker's death a task that it ran was run again."""
    found: list[float] = []
    for reported, after in itertools.pairwise(trail):
        death = killed_ms.get(reported.worker)
        if reported.status == after.status == "RUNNING" and death is not None:
            found.append((after.at_ms - death) / 1000)
    return found


def recorded(folder: Path, file: str) -> list[list[Any]]:
    """Read what workers wrote down outside."""
    path = folder / file
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def taken_twice(facts: list[list[Any]]) -> int:
    """Count the steps that had one thing in one run and another in another: key, or result."""
    things: dict[tuple[str, int], set[str]] = defaultdict(set)
    for task, step, thing in facts:
        things[task, step].add(thing)
    return sum(len(found) > 1 for found in things.values())


def worst(seconds: list[float]) -> dict[str, float]:
    """Sum up how long something took."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {"median_s": round(ordered[len(ordered) // 2], 2), "longest_s": round(ordered[-1], 2)}


def statuses_of(found: dict[str, list[StatusRow]]) -> dict[str, int]:
    """Count tasks by the state that they were last told to be in."""
    return dict(Counter(trail[-1].status for trail in found.values()))
