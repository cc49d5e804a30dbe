"""The callers of a soak, what they expect of each reply, and what must be true in the end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import CursorGap, VersionConflict
from redis_state.models import StateUpdate, UpdateType
from redis_state.testing import eventually
from redis_state.worker import Schedule, TaskClient, occurrence_of
from tests.chaos.support.crew import recorded, taken_twice
from tests.chaos.support.trial import How, Trial
from tests.support.processes.pools import queue_of

SOAK_STEPS = 3
# Longer than a failover: what runs keeps its permit.
SOAK_LEASE_S = 20.0
PER_KEY = 2
_CALL_S = 60.0
_KEYS = 3
_WRITERS, _WRITE_EVERY_S = 8, 0.2
_KEPT_ROWS = 2_000
_KEPT = timedelta(seconds=120)
_TURNS = 2
_SUBMITTERS = 2
_SUBMIT_EVERY_S = 1.0
_SCHEDULE, _EVERY = "soak", timedelta(seconds=3)
_OVER_S = 180.0


def soak_settings(url: str, namespace: str) -> Settings:
    """Make settings under which nothing acknowledged is lost, and nothing is kept for long."""
    return Settings(
        url=SecretStr(url),
        namespace=namespace,
        call_timeout_s=_CALL_S,
        guarantee="replicated",
        max_updates_per_session=_KEPT_ROWS,
        updates_ttl=_KEPT,
        steering_ttl=_KEPT,
        finished_task_ttl=_KEPT,
        snapshots_ttl=_KEPT,
        resolved_token_ttl=_KEPT,
    )


@dataclass
class Soak:
    """Callers that make calls of every kind until they are told to stop.

    Any error of a call is a problem: a call has the time that the worst fault takes.
    """

    trial: Trial
    client: TaskClient
    folder: Path
    over: bool = False
    # The session and task of each submitted task, in the order of submission, and its result.
    submitted: dict[str, Any] = field(default_factory=dict[str, Any])
    scheduled: dict[str, str] = field(default_factory=dict[str, str])
    rows: Counter[str] = field(default_factory=Counter[str])
    rewound: int = 0
    longest_s: dict[str, float] = field(default_factory=dict[str, float])
    _seen: Counter[str] = field(default_factory=Counter[str])

    @property
    def store(self) -> RedisStateStore:
        """The callers' store."""
        return self.client.store

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Make calls for the length of the block; return once all tasks are over."""
        queue = queue_of(self.store.settings)
        await self.client.queues.limit(queue, per_key=PER_KEY)
        await self.client.schedules.save(
            Schedule(
                schedule_id=_SCHEDULE,
                handler="work",
                session_id="scheduled",
                every=_EVERY,
                missed="all",
            )
        )
        sessions = [f"rows{number}" for number in range(_WRITERS)]
        watching = [asyncio.create_task(self._watch(each)) for each in sessions]
        callers = [
            *(self._write(each) for each in sessions),
            *(self._submit_limited(f"limited{number}") for number in range(_SUBMITTERS)),
            *(self._submit_in_turn(f"turn{number}") for number in range(_TURNS)),
            *(self._submit_asking(f"asks{number}") for number in range(_SUBMITTERS)),
            *(self._count(name) for name in "ab"),
            self._follow_schedule(),
        ]
        calling = [asyncio.create_task(each) for each in callers]
        try:
            yield
            self.over = True
            for error in await asyncio.gather(*calling, return_exceptions=True):
                self.trial.expect(error is None, f"a caller ended: {error!r}")
            await self._all_heard(watching)
        finally:
            for task in (*calling, *watching):
                task.cancel()
            await asyncio.wait({*calling, *watching})

    async def more_than(self, rows: int) -> None:
        """Wait until more rows are written than these."""
        await eventually(lambda: self.rows.total() > rows, "rows are written", timeout_s=_OVER_S)

    @contextmanager
    def _doing(self, operation: str) -> Generator[None]:
        began = time.monotonic()
        with self.trial.history.doing(operation):
            yield
        self._took(operation, time.monotonic() - began)

    def _took(self, operation: str, seconds: float) -> None:
        self.longest_s[operation] = max(self.longest_s.get(operation, 0.0), seconds)

    async def _write(self, session_id: str) -> None:
        while not self.over:
            number = self.rows[session_id] + 1
            row = StateUpdate(
                session_id=session_id,
                task_id="t",
                update_type=UpdateType.PROGRESS,
                content=number,
                update_id=f"{session_id}-{number}",
            )
            with self._doing("append"):
                await self.store.save_update(row)
                self.rows[session_id] = number
            await asyncio.sleep(_WRITE_EVERY_S)

    async def _watch(self, session_id: str) -> None:
        """Expect each row after the one before. A failover may take back one that nobody confirmed:

        its append goes on, and it comes again.
        """
        cursor, is_rewound = None, False
        while True:
            try:
                async with aclosing(self.store.watch_updates(session_id, after=cursor)) as rows:
                    async for entry in rows:
                        cursor, number = entry.cursor, int(entry.value.content)
                        seen = self._seen[session_id]
                        if number == seen and is_rewound:
                            self.rewound += 1
                        elif number <= seen:
                            self.trial.duplicated += 1
                        else:
                            self.trial.lost += number - seen - 1
                        self._seen[session_id] = max(seen, number)
                        is_rewound = False
            except CursorGap as gap:
                self.trial.expect(gap.reason != "trimmed", f"{session_id}: {gap}")
                cursor, is_rewound = gap.resume_after, True

    async def _all_heard(self, watching: list[asyncio.Task[None]]) -> None:
        with suppress(AssertionError):
            await eventually(lambda: self._seen == self.rows, "all is heard", timeout_s=_OVER_S)
        for session_id, written in self.rows.items():
            self.trial.lost += max(0, written - self._seen[session_id])
            kept = [int(each.content) for each in await self.store.list_updates(session_id)]
            last = list(range(written - len(kept) + 1, written + 1))
            self.trial.expect(kept == last, f"{session_id}: the kept rows are not the last ones")
        ended = [task for task in watching if task.done()]
        self.trial.expect(not ended, f"watchers ended: {ended}")

    async def _submit(self, session_id: str, number: int, **options: Any) -> str:
        task_id = f"{number:06}"
        with self._doing("submit"):
            await self.client.submit("work", session_id=session_id, task_id=task_id, **options)
        self.submitted[f"{session_id} {task_id}"] = None
        return task_id

    async def _result(self, session_id: str, task_id: str) -> None:
        began = time.monotonic()
        self.submitted[f"{session_id} {task_id}"] = await self.client.result(
            session_id, task_id, timeout_s=_OVER_S
        )
        self._took("result", time.monotonic() - began)

    async def _numbers(self) -> AsyncGenerator[int]:
        for number in itertools.count():
            if self.over:
                return
            yield number
            await asyncio.sleep(_SUBMIT_EVERY_S)

    async def _many(
        self, session_id: str, one: Callable[[str, int, asyncio.TaskGroup], Awaitable[None]]
    ) -> None:
        """Submit one after the other, and wait for the results of each beside that."""
        async with asyncio.TaskGroup() as group:
            async for number in self._numbers():
                await one(session_id, number, group)

    async def _submit_limited(self, session_id: str) -> None:
        async def one(session_id: str, number: int, group: asyncio.TaskGroup) -> None:
            task_id = await self._submit(session_id, number, limit_key=f"k{number % _KEYS}")
            group.create_task(self._result(session_id, task_id))

        await self._many(session_id, one)

    async def _submit_in_turn(self, session_id: str) -> None:
        async def one(session_id: str, number: int, group: asyncio.TaskGroup) -> None:
            task_id = await self._submit(session_id, number, in_turn=True)
            group.create_task(self._result(session_id, task_id))

        await self._many(session_id, one)

    async def _submit_asking(self, session_id: str) -> None:
        async def one(session_id: str, number: int, group: asyncio.TaskGroup) -> None:
            task_id = await self._submit(session_id, number, task_input={"asks": True})
            group.create_task(self._answer(session_id, task_id))

        await self._many(session_id, one)

    async def _answer(self, session_id: str, task_id: str) -> None:
        """Watch a task from its begin to its end, and approve what it asks."""
        cursor, progress, terminal = None, list[str](), 0
        async with asyncio.timeout(_OVER_S):
            while not terminal:
                try:
                    async for entry in self.client.watch(session_id, task_id, after=cursor):
                        cursor, update = entry.cursor, entry.value
                        content: Any = update.content
                        if update.update_type is UpdateType.CHECKPOINT:
                            await self._approve(task_id, content["pause_id"])
                        elif update.update_type is UpdateType.PROGRESS:
                            progress.append(content["message"])
                        elif update.update_type is UpdateType.STATUS_CHANGE:
                            terminal += content["status"] in ("COMPLETE", "FAILED", "CANCELLED")
                except CursorGap as gap:
                    self.rewound += 1
                    cursor, progress = gap.resume_after, []
        self.trial.duplicated += len(progress) - len(set(progress)) + terminal - 1
        await self._result(session_id, task_id)

    async def _approve(self, task_id: str, pause_id: str) -> None:
        with self._doing("approve"):
            await self.client.approve(
                pause_id, f"yes {task_id}", actor="ann", idempotency_key=f"answer {pause_id}"
            )

    async def _count(self, name: str) -> None:
        """Count in a shared document, on the version that was read."""
        counted = 0
        empty: dict[str, Any] = {}
        while not self.over:
            with self._doing("save"):
                document, version = await self.store.load_memory("shared") or (empty, 0)
                found = document.get(name, 0)
                self.trial.lost += max(0, counted - found)
                self.trial.duplicated += max(0, found - counted)
                counted = found
                # The other caller's save may be first.
                if await self._is_saved(document | {name: counted + 1}, version):
                    counted += 1
            await asyncio.sleep(_WRITE_EVERY_S)

    async def _is_saved(self, document: dict[str, Any], version: Any) -> bool:
        try:
            await self.store.save_memory_state("shared", document, expected_version=version)
        except VersionConflict:
            return False
        return True

    async def _follow_schedule(self) -> None:
        """Note how each task of the schedule ended, while it is kept."""
        while not self.over:
            await self._look_at_schedule()
            await asyncio.sleep(5)
        await self.client.schedules.pause(_SCHEDULE)

        async def all_over() -> bool:
            await self._look_at_schedule()
            return all(status == "COMPLETE" for status in self.scheduled.values())

        with suppress(AssertionError):
            await eventually(all_over, "the schedule's tasks are over", timeout_s=_OVER_S)

    async def _look_at_schedule(self) -> None:
        with self._doing("list"):
            for task in await self.store.list_tasks("scheduled"):
                self.scheduled[task.task_id] = task.status.value

    def judge(self) -> None:
        """Compare what workers did outside with what the callers were told."""
        trial = self.trial
        effects, results = recorded(self.folder, "effects"), recorded(self.folder, "results")
        trial.duplicated += taken_twice(effects) + taken_twice(results)
        made = {(task, number): result for task, number, result in results}
        for name, result in self.submitted.items():
            expected = [made.get((name, number)) for number in range(SOAK_STEPS)]
            if name.startswith("asks"):
                expected.append(f"yes {name.split()[1]}")
            trial.lost += result is None
            trial.expect(result == expected, f"{name}: another result than its steps")
        runs = recorded(self.folder, "runs")
        unwanted: tuple[How, ...] = ("fail", "unknown")
        for how in unwanted:
            trial.expect(trial.history.count(how) == 0, f"{trial.history.count(how)} {how}")
        self._judge_schedule()
        self._judge_turns(runs)
        self._judge_limits(runs)
        trial.figures |= {
            "rows": self.rows.total(),
            "tasks": len(self.submitted),
            "scheduled": len(self.scheduled),
            "runs": sum(what == "begin" for _, _, what, *_ in runs),
            "effects_done_again": len(effects) - len({tuple(each[:2]) for each in effects}),
            "rows_taken_back_unconfirmed": self.rewound,
            "longest_call_s": {name: round(s, 1) for name, s in self.longest_s.items()},
        }

    def _judge_schedule(self) -> None:
        """Each occurrence has one task, without a gap."""
        trial, ids = self.trial, sorted(self.scheduled)
        unfinished = [each for each in ids if self.scheduled[each] != "COMPLETE"]
        trial.expect(not unfinished, f"scheduled and not complete: {unfinished[:3]}")
        moments = sorted(at for at in map(occurrence_of, ids) if at is not None)
        trial.expect(len(moments) > 1, "the schedule was not due")
        if moments:
            trial.lost += (moments[-1] - moments[0]) // _EVERY + 1 - len(moments)

    def _judge_turns(self, runs: list[list[Any]]) -> None:
        """Tasks that take turns begin in the order of their submission."""
        first: dict[str, None] = {}
        for task, _, what, *_ in sorted(runs, key=lambda row: row[4]):
            if what == "begin" and task.startswith("turn"):
                first.setdefault(task)
        for session in {task.split()[0] for task in first}:
            begun = [task for task in first if task.split()[0] == session]
            self.trial.expect(begun == sorted(begun), f"{session}: another order")

    def _judge_limits(self, runs: list[list[Any]]) -> None:
        """Never do more tasks of a key, or of a session with turns, run than may."""
        running: dict[str, dict[str, str]] = {}
        most = Counter[str]()
        rows = [(at, task, run, what, name) for task, run, what, name, at in runs]
        rows += [(at, "", "", "death", name) for name, at in recorded(self.folder, "deaths")]
        for _, task, run, what, name in sorted(rows):
            if what == "death":
                for held in running.values():
                    for lost in [each for each, worker in held.items() if worker == name]:
                        del held[lost]
                continue
            key = _limit_of(task)
            if key is None:
                continue
            held = running.setdefault(key, {})
            if what == "begin":
                held[run] = name
            else:
                held.pop(run, None)
            most[key] = max(most[key], len(held))
        for key, count in most.items():
            allowed = 1 if key.startswith("turn") else PER_KEY
            self.trial.expect(count <= allowed, f"{count} tasks of {key} at once")
        self.trial.figures["most_at_once"] = dict(most)


def _limit_of(task: str) -> str | None:
    session, task_id = task.split()
    if session.startswith("limited"):
        return f"k{int(task_id) % _KEYS}"
    return session if session.startswith("turn") else None
