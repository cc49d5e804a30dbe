"""Who waits for a rate or a time holds no worker, and waits as long whatever workers die."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.chaos.support.crew import Crew, ends, recorded, trails
from tests.processes.workers.killed.operated_worker import NAP, PACE
from tests.support.processes.pools import SESSION, becomes, client_of

pytestmark = pytest.mark.slow


async def test_waits_for_a_rate_and_sleeps_hold_no_worker_and_outlive_those_that_are_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    # Each worker has one slot: what waits in it would hold up all others.
    crew = Crew(store.settings, tmp_path, program="operated_worker", lease_s=0.4, max_tasks=1)
    async with client_of(store) as client, crew:
        long = await client.submit("held", session_id=SESSION)
        sleeps = [await client.submit("asleep", session_id=SESSION) for _ in range(2)]
        calls = [await client.submit("paced", session_id=SESSION) for _ in range(3)]
        # It dies with a place that it has taken and not recorded.
        mark, since_s = tmp_path / "killed", time.time()
        first = await crew.start(die=["after", "take_rate", str(mark)])
        await eventually(mark.exists, "a place is taken", timeout_s=60)
        assert await crew.processes[first].wait() == -signal.SIGKILL
        second = await crew.start()
        # The last in the line: all before it have had the slot, and given it back.
        quick = await client.submit("twice", session_id=SESSION)
        await client.result(SESSION, quick, timeout_s=60)
        (use,) = await client.rates.in_use()
        assert use.wait_s > 0
        still = await store.list_tasks(SESSION)
        paused = {task.task_id for task in still if task.status is TaskStatus.PAUSED}
        assert long in paused
        assert paused & {*calls}, "some wait for their places when the worker dies"
        assert await crew.kill(second) == -signal.SIGKILL
        for _ in range(2):
            await crew.start()
        for task in (*sleeps, *calls):
            await client.wait(SESSION, task, timeout_s=60)
        assert (await becomes(client, long, TaskStatus.PAUSED)).status is TaskStatus.PAUSED
        await client.cancel(SESSION, long)
        rows = await trails(store)
    # Each had one place, and none came before its time.
    came = sorted((at_s, task) for task, at_s in recorded(tmp_path, "paced"))
    assert Counter(task for _, task in came) == dict.fromkeys(calls, 1)
    # Two counts of whole milliseconds. The place that the dead worker took is taken.
    for place, (at_s, _) in enumerate(came, start=1):
        assert at_s + 0.002 >= since_s + place * PACE.per.total_seconds()
    before, after = (
        {task: float(at_s) for task, at_s in recorded(tmp_path, name)}
        for name in ("asleep", "awake")
    )
    assert set(before) == set(after) == set(sleeps)
    assert all(after[task] - before[task] >= NAP.total_seconds() for task in sleeps)
    assert [ends(rows[task]) for task in (*sleeps, *calls)] == [1] * 5
