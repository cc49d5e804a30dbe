"""Time that is skipped for several processes: one clock, and what is alive stays alive."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.testing.pool import Pool
from redis_state.worker import AgentWorker, TaskContext
from tests.support.processes.pools import SESSION
from tests.support.processes.worker_processes import has_begun, stop, worker_process

pytestmark = pytest.mark.worker

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


async def _nothing(ctx: TaskContext) -> None: ...


async def test_workers_of_other_processes_have_the_same_time() -> None:
    async with Pool({"nothing": _nothing}, patience_s=60) as pool:
        submit = pool.client.submit
        async with (
            worker_process(pool.settings, "a", program="skipped_worker", queue="far"),
            worker_process(pool.settings, "b", program="skipped_worker", queue="far"),
            RedisStateStore(pool.settings) as other,
        ):
            tasks = [await submit("nap", n, session_id=SESSION, queue="far") for n in (1, 2, 3)]
            start = await pool.now()
            await pool.skip(2 * DAY)
            found = [await other.tasks.look(SESSION, task) for task in tasks]
            ended = [TaskStatus.COMPLETE, TaskStatus.COMPLETE, TaskStatus.PAUSED]
            assert [one and one.status for one in found] == ended
            assert await pool.result(SESSION, tasks[2]) in {"a", "b"}
            assert await pool.now() - start < 3 * DAY + HOUR


async def test_a_task_that_runs_elsewhere_is_left_to_its_worker_until_that_is_killed() -> None:
    async with (
        Pool({"nothing": _nothing}, patience_s=0.1) as pool,
        worker_process(
            pool.settings, "dies", program="skipped_worker", queue="far", lease_s=2
        ) as process,
    ):
        task = await pool.client.submit("block", None, session_id=SESSION, queue="far")
        await eventually(lambda: has_begun(pool.store, task), "it runs")
        async with worker_process(
            pool.settings, "heir", program="skipped_worker", queue="far", lease_s=2
        ):
            for _ in range(5):
                await pool.skip(DAY)
            found = await pool.store.tasks.look(SESSION, task)
            assert found is not None
            assert (found.attempts, found.crashes) == (1, 0)
            await stop(process, signal.SIGKILL)
            # Its lease counts in real time: a skip is no proof that a worker is dead.
            assert await pool.client.result(SESSION, task, timeout_s=60) == "heir"


async def test_a_sleep_of_days_outlives_its_worker_and_ends_neither_early_nor_twice() -> None:
    options = {"program": "skipped_worker", "queue": "far"}
    async with Pool({"nothing": _nothing}, patience_s=60) as pool:
        async with worker_process(pool.settings, "dies", **options) as process:
            task = await pool.client.submit("nap", 3, session_id=SESSION, queue="far")

            async def sleeps() -> bool:
                found = await pool.store.tasks.look(SESSION, task)
                return found is not None and found.status is TaskStatus.PAUSED

            await eventually(sleeps, "it sleeps")
            assert await stop(process, signal.SIGKILL) == -signal.SIGKILL
        await pool.skip(2 * DAY)
        async with worker_process(pool.settings, "heir", **options):
            await pool.skip(DAY - HOUR)
            assert await sleeps()
            await pool.skip(2 * HOUR)
            assert await pool.result(SESSION, task) == "heir"
            found = await pool.store.tasks.look(SESSION, task)
            assert found is not None
            assert (found.attempts, found.crashes) == (2, 0)


async def test_time_goes_on_while_a_client_of_the_test_submits() -> None:
    """Whatever is submitted while time is skipped runs, and none of it twice."""
    ran: list[int] = []

    async def work(ctx: TaskContext) -> None:
        await ctx.sleep(ctx.input * HOUR)
        ran.append(ctx.input)

    async with Pool(AgentWorker({"work": work}, lease_s=3), patience_s=60) as pool:

        async def submit() -> list[str]:
            return [
                await pool.client.submit("work", n % 7 + 1, session_id=f"s{n}") for n in range(40)
            ]

        submitting = asyncio.create_task(submit())
        while not submitting.done():
            await pool.skip(HOUR)
        await pool.skip(8 * HOUR)
        for n, task in enumerate(await submitting):
            found = await pool.store.tasks.look(f"s{n}", task)
            assert found is not None
            assert (found.status, found.crashes) == (TaskStatus.COMPLETE, 0)
        assert sorted(ran) == sorted(n % 7 + 1 for n in range(40))
