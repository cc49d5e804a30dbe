"""Workers that are stopped for longer than their lease, and wake up when another has their task."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.chaos.support.crew import Crew, StatusRow, ends, recorded, trails, wrong_move
from tests.chaos.support.trial import Trial
from tests.support.processes.pools import SESSION, client_of
from tests.support.processes.worker_processes import has_begun
from tests.support.tasks.crash_states import send

_LEASE_S = 0.5
_LEASES = 3


async def test_a_stopped_worker_wakes_up_when_its_task_is_anothers(
    trial: Trial, store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    rounds = trial.size.of(200, least=4)
    pairs = min(4, rounds // 2)
    trial.parameters = {
        "rounds": rounds,
        "pairs_of_workers": pairs,
        "stopped_for_leases": _LEASES,
        "lease_s": _LEASE_S,
    }
    numbers = iter(range(rounds))

    async def pair(number: int) -> None:
        # A queue of its own: whichever of the two takes the task, the other takes it over.
        own = settings.model_copy(update={"namespace": f"{settings.namespace}-{number}"})
        async with (
            RedisStateStore(own) as theirs,
            client_of(theirs) as client,
            Crew(own, tmp_path, lease_s=_LEASE_S) as crew,
        ):
            for _ in range(2):
                await crew.start()
            for _ in numbers:
                while not await _round(trial, theirs, client, crew, tmp_path):
                    pass
            trial.expect(len(crew.alive()) == 2, "a worker has ended")

    await asyncio.gather(*(pair(number) for number in range(pairs)))
    reported = {task: (tried, refused) for task, tried, refused in recorded(tmp_path, "zombies")}
    tried = sum(each for each, _ in reported.values())
    refused = sum(each for _, each in reported.values())
    trial.lost = tried - refused
    trial.expect(len(reported) >= rounds, f"{len(reported)} zombies")
    trial.figures = {"writes_tried": tried, "writes_refused": refused}
    trial.conclude()


async def _round(
    trial: Trial, store: RedisStateStore, client: TaskClient, crew: Crew, folder: Path
) -> bool:
    """Stop the worker of a new task. False if it was late by itself: a busy machine."""
    began = time.monotonic()
    task = await client.submit("zombie", session_id=SESSION)
    await eventually(lambda: has_begun(store, task), "it runs", timeout_s=120)
    victim, *others = [reported.worker for reported in await _trail(store, task) if reported.worker]
    if others:
        await client.wait(SESSION, task, timeout_s=120)
        return False
    crew.report(victim, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        await client.wait(SESSION, task, timeout_s=120)
        # Frozen for so long at the least, however soon another was there.
        await asyncio.sleep(max(0.0, stopped + _LEASES * _LEASE_S - time.monotonic()))
    finally:
        crew.report(victim, signal.SIGCONT)
    trial.faults += 1

    def awake() -> bool:
        return any(name == task for name, _, _ in recorded(folder, "zombies"))

    await eventually(awake, "the stopped worker has tried all it can", timeout_s=120)
    trail = await _trail(store, task)
    states = [reported.status for reported in trail]
    trial.expect(wrong_move(trail) is None and ends(trail) == 1, f"{task}: {states}")
    other = trail[-2].worker
    state = await client.get(SESSION, task)
    right = other != victim and state is not None and state.result == other and not state.priority
    trial.expect(right, f"{task} is not the other worker's")
    trial.duplicated += await _accepted(store, task)
    trial.history.note("round", "ok" if right else "unknown", began)
    return True


async def _accepted(store: RedisStateStore, task: str) -> int:
    """Count what the zombie's run has written since another took its task over."""
    updates = await store.list_updates(SESSION, task_id=task)
    taken = max(
        place
        for place, update in enumerate(updates)
        if update.update_type is UpdateType.STATUS_CHANGE and update.content["status"] == "RUNNING"
    )
    kinds = (UpdateType.PROGRESS, UpdateType.CHECKPOINT)
    late = [update for update in updates[taken:] if update.update_type in kinds]
    # No run that counts has noted anything.
    journal = store.tasks.keys(SESSION, task).journal
    return len(late) + int(await send(store, "HLEN", journal))


async def _trail(store: RedisStateStore, task: str) -> list[StatusRow]:
    return (await trails(store))[task]
