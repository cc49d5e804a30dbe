"""A schedule that leaves out what overlaps, whose workers are killed while a task of it runs."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

import itertools

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import ScheduleView
from tests.chaos.support.crew import Crew, recorded, trails
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.schedules import hourly

pytestmark = pytest.mark.worker


async def test_the_task_of_a_killed_worker_is_not_overlapped_until_it_has_ended(
    store: RedisStateStore, tmp_path: Path
) -> None:
    schedule = hourly(every=timedelta(seconds=1), handler="hold", overlap="skip")
    async with (
        client_of(store) as client,
        Crew(store.settings, tmp_path, program="flow_worker", lease_s=1.0) as crew,
    ):

        def runs() -> list[str]:
            return [line[3] for line in recorded(tmp_path, "runs") if line[0] == "begin"]

        async def stands() -> ScheduleView:
            return await client.schedules.get("s")

        async def left_out() -> datetime | None:
            return (await stands()).skipped_at

        for _ in range(2):
            await crew.start()
        await client.schedules.save(schedule)
        (victim,) = await eventually(runs, "a task runs", timeout_s=60)
        before = await eventually(left_out, "one is left out", timeout_s=60)
        assert before is not None
        assert await crew.kill(victim) == -signal.SIGKILL
        await crew.start()
        await eventually(lambda: len(runs()) == 2, "it is taken over", timeout_s=60)

        async def still_left_out() -> bool:
            newest = await left_out()
            return newest is not None and newest > before

        await eventually(still_left_out, "and others are left out", timeout_s=60)
        assert ((await stands()).fired, len(await store.list_tasks(SESSION))) == (1, 1)
        (tmp_path / "release").touch()

        async def next_has_come() -> bool:
            return (await stands()).fired > 1

        await eventually(next_has_come, "the next one comes", timeout_s=60)
        view = await client.schedules.pause("s")

        async def all_complete() -> bool:
            tasks = await store.list_tasks(SESSION)
            done = {task.status for task in tasks} == {TaskStatus.COMPLETE}
            return done and len(tasks) == view.fired

        await eventually(all_complete, "all are complete", timeout_s=60)
        rows = await trails(store)
    moves = [Counter(row.status for row in trail) for trail in rows.values()]
    assert [(each["PENDING"], each["COMPLETE"]) for each in moves] == [(1, 1)] * view.fired
    assert max(each["RUNNING"] for each in moves) == 2
    # One had ended before the next one was made.
    ordered = sorted(rows.values(), key=lambda trail: trail[0].at_ms)
    for earlier, later in itertools.pairwise(ordered):
        assert earlier[-1].at_ms <= later[0].at_ms
