"""Workers that are killed all the time."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskState, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.chaos.support.crew import (
    Crew,
    StatusRow,
    ends,
    recorded,
    statuses_of,
    taken_twice,
    takeovers_s,
    trails,
    worst,
    wrong_move,
)
from tests.chaos.support.trial import How, Trial
from tests.processes.workers.killed.chaos_worker import STEPS
from tests.support.processes.pools import SESSION, client_of
from tests.support.scripts.replies import clock_ms

_WORKERS = 4
_KILL_EVERY_S = 2.0
_CHECK_EVERY_S = 0.4
_LONGEST_S = 420.0


async def test_workers_are_killed(
    trial: Trial, store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    jobs = trial.size.of(1_000, least=40)
    lease_s = 10.0 if trial.size.full else 2.0
    step_s, slots = (0.5, 10) if trial.size.full else (0.3, 2)
    trial.parameters = {
        "jobs": jobs,
        "steps": STEPS,
        "workers": _WORKERS,
        "step_s": step_s,
        "slots": slots,
        "kill_every_s": _KILL_EVERY_S,
        "lease_s": lease_s,
    }
    killed_ms: dict[str, int] = {}
    async with (
        client_of(store) as client,
        Crew(settings, tmp_path, lease_s=lease_s, step_s=step_s, max_tasks=slots) as crew,
    ):
        for _ in range(_WORKERS):
            await crew.start()
        await eventually(partial(_arrived, client, crew, _WORKERS), "all are there", timeout_s=90)
        tasks = [await client.submit("work", session_id=SESSION) for _ in range(jobs)]
        over: dict[str, TaskState] = {}
        began_s = time.monotonic()
        kill_at = began_s + _KILL_EVERY_S / 2
        while len(over) < jobs and time.monotonic() < began_s + _LONGEST_S:
            await asyncio.sleep(_CHECK_EVERY_S)
            found = await store.list_tasks(SESSION)
            over = {one.task_id: one for one in found if one.status.is_terminal}
            # With one or two left, it would be their machine's speed at starting that counts.
            ready = await _arrived(client, crew, _WORKERS - 1)
            # Nor when the last few tasks are left: their worker would be killed again and again.
            kills = time.monotonic() > kill_at and len(over) < jobs * 9 // 10
            victim = await _busiest(store, ready) if kills else None
            if victim is not None:
                kill_at = time.monotonic() + _KILL_EVERY_S
                killed_ms[victim] = await clock_ms(store.base.scripts)
                trial.faults += await crew.kill(victim) == -signal.SIGKILL
                await crew.start()
        reported = await trails(store)
    _judge_ends(trial, reported, tasks, over)
    _judge_effects(trial, tmp_path, over)
    took_s = [taken for trail in reported.values() for taken in takeovers_s(trail, killed_ms)]
    trial.figures |= {
        "takeovers": len(took_s),
        "takeover": worst(took_s),
        "promised_s": lease_s + 2,
    }
    trial.expect(took_s, "nothing was taken over")
    trial.expect(trial.faults >= trial.size.of(10), f"only {trial.faults} were killed")
    longest_s = max(took_s, default=0.0)
    late = longest_s > (lease_s + 2) * trial.size.tolerance
    trial.expect(not late, f"taken over after {longest_s:.1f} s")
    trial.conclude()


def _judge_ends(
    trial: Trial, reported: dict[str, list[StatusRow]], tasks: list[str], over: dict[str, TaskState]
) -> None:
    """Each task has ended once, and well."""
    for task in tasks:
        trail = reported[task]
        there = task in over and ends(trail) > 0
        trial.lost += not there
        trial.duplicated += ends(trail) > 1
        trial.expect(wrong_move(trail) is None, f"{task}: {wrong_move(trail)}")
        if trail:
            how: How = "ok" if there else "unknown"
            trial.history.note("job", how, trail[0].at_ms / 1000, trail[-1].at_ms / 1000)
    failed = [state.error for state in over.values() if state.status is not TaskStatus.COMPLETE]
    trial.expect(not failed, f"not complete: {failed[:3]}")
    trial.figures["ended"] = statuses_of(reported)


def _judge_effects(trial: Trial, folder: Path, over: dict[str, TaskState]) -> None:
    """Each step has one effect outside and one result, which is the one in the task's result."""
    effects, results = recorded(folder, "effects"), recorded(folder, "results")
    trial.duplicated += taken_twice(effects) + taken_twice(results)
    done = {(task, step) for task, step, _ in effects}
    trial.expect(len(done) == trial.parameters["jobs"] * STEPS, f"{len(done)} effects")
    returned = {(task, number): stated for task, number, stated in results}
    for name, state in over.items():
        given = [returned.get((name, number)) for number in range(STEPS)]
        trial.expect(state.result == given, f"{name} has a result that no step gave")
    trial.figures["effects_recorded"] = len(done)
    trial.figures["done_again_under_the_same_key"] = len(effects) - len(done)


async def _busiest(store: RedisStateStore, ready: list[str]) -> str | None:
    """Name the worker that runs most tasks; None if none runs any."""
    reported = await trails(store)
    running = Counter(
        trail[-1].worker for trail in reported.values() if trail[-1].status == "RUNNING"
    )
    busy = [name for name in ready if running[name]]
    return max(busy, key=lambda name: running[name], default=None)


async def _arrived(client: TaskClient, crew: Crew, wanted: int) -> list[str]:
    """Name the workers that are there and have been heard of, the longest there first.

    None of them unless there are as many as wanted.
    """
    heard = {info.name for info in await client.workers()}
    there = [name for name in crew.alive() if name in heard]
    return there if len(there) >= wanted else []
