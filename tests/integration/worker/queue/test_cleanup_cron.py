"""The scheduled clean-up: as a cron job of our workers and of arq's own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from arq.connections import create_pool
from arq.cron import CronJob, cron
from arq.worker import Worker, create_worker

from redis_state import ConfigError, RedisStateStore, Settings
from redis_state.integrations.embabel.task_state_manager import TaskCounts, TaskStateManager
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskContext, cleanup_cron
from redis_state.worker.arq.cron import plan_next
from redis_state.worker.arq.settings import arq_server
from tests.processes.a2a.keep_task_states import status
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    key_of_queue,
    queue_of,
    serving,
)
from tests.support.servers.faults import needs_arqs_runner

NOW: dict[str, Any] = {"older_than": timedelta(0), "hour": None, "minute": None}


class Noting:
    """Cleans up, and notes what each run dropped. ``failing`` runs fail first."""

    def __init__(self, tasks: TaskStateManager, failing: int = 0) -> None:
        self._tasks = tasks
        self._failing = failing
        self.dropped: list[int] = []
        self.failed = 0

    async def cleanup_old_tasks(self, older_than: timedelta) -> int:
        if self.failed < self._failing:
            self.failed += 1
            raise ConnectionError("on purpose")
        self.dropped.append(await self._tasks.cleanup_old_tasks(older_than))
        return self.dropped[-1]


@pytest.fixture
async def tasks(store: RedisStateStore) -> TaskStateManager:
    """Give a manager of 200 completed tasks and an active one."""
    made = TaskStateManager(store)
    names = [f"t{n}" for n in range(200)]
    await asyncio.gather(*(made.register_task(name, "c", "s") for name in [*names, "active"]))
    await asyncio.gather(*(made.record_event(name, status("completed")) for name in names))
    return made


async def noop(_: TaskContext) -> str:
    return "done"


async def test_a_worker_cleans_up_beside_its_tasks(
    store: RedisStateStore, settings: Settings, tasks: TaskStateManager
) -> None:
    crons = [cleanup_cron(tasks, run_at_startup=True, **NOW)]
    async with serving(agent(settings, {"noop": noop}, crons=crons)), client_of(store) as client:
        await eventually(lambda: _counts(tasks, TaskCounts(1, 0)), "all that ended is dropped")
        task = await client.submit("noop", None, session_id=SESSION)
        assert (await becomes(client, task, TaskStatus.COMPLETE)).result == "done"
    assert await tasks.is_task_active("active")


@pytest.mark.slow
async def test_a_cron_job_is_run_at_its_times_and_after_a_failure_too(
    settings: Settings, tasks: TaskStateManager, caplog: pytest.LogCaptureFixture
) -> None:
    noting = Noting(tasks, failing=1)
    each_second = set(range(60))
    crons = [cleanup_cron(noting, second=each_second, **NOW)]
    async with serving(agent(settings, {"noop": noop}, crons=crons)):
        await eventually(lambda: len(noting.dropped) >= 2, "it is run again", timeout_s=30)
    assert noting.failed == 1
    assert noting.dropped[:2] == [200, 0]
    assert "on purpose" in caplog.text


async def test_workers_that_all_clean_up_at_once_drop_each_task_once(
    settings: Settings, tasks: TaskStateManager
) -> None:
    async with AsyncExitStack() as stack:
        noting: list[Noting] = []
        for name in ("one", "two", "other"):
            store = await stack.enter_async_context(RedisStateStore(settings))
            one = Noting(TaskStateManager(store))
            noting.append(one)
            job = cleanup_cron(one, run_at_startup=True, name=f"clean {name}", **NOW)
            # A job may stay in a queue when its worker stops.
            queue = f"{name}-queue-{settings.namespace}"
            worker = replace(agent(settings, {"noop": noop}), queue=queue)
            await stack.enter_async_context(serving(replace(worker, crons=[job])))
        await eventually(lambda: all(one.dropped for one in noting), "each has cleaned up")
    assert sum(sum(one.dropped) for one in noting) == 200
    assert await tasks.count_tasks() == TaskCounts(1, 0)


@pytest.mark.role("any", why="arq's own runner needs more")
async def test_arqs_own_worker_can_clean_up(settings: Settings, tasks: TaskStateManager) -> None:
    needs_arqs_runner(settings.url.get_secret_value())
    worker = Worker(
        cron_jobs=[cleanup_cron(tasks, run_at_startup=True, **NOW)],
        redis_settings=arq_server(settings),
        queue_name=queue_of(settings),
        handle_signals=False,
        poll_delay=0.01,
        keep_result=0,
        burst=True,
    )
    await worker.async_run()
    # Not by arq: its own close calls what redis-py has deprecated.
    await worker.pool.aclose(close_connection_pool=True)
    # One at the start, and perhaps one when a machine that is busy comes to the next minute.
    assert worker.jobs_complete in (1, 2)
    assert await tasks.count_tasks() == TaskCounts(1, 0)


@pytest.mark.role("any", why="arq's own runner needs more")
# arq runs one with an id once a minute.
@pytest.mark.parametrize(("job_id", "count"), [(None, 3), ("one:at:a:time", 1)])
async def test_workers_of_both_runners_run_each_moment_once(
    store: RedisStateStore, settings: Settings, job_id: str | None, count: int
) -> None:
    needs_arqs_runner(settings.url.get_secret_value())
    runs = 0

    async def tick(ctx: dict[Any, Any]) -> None:
        nonlocal runs
        del ctx
        runs += 1

    job = cron(tick, name="cron:tick", second=None, job_id=job_id)
    # Two queues: neither takes the other's jobs from it.
    own, other = queue_of(settings), f"arq-{queue_of(settings)}"
    both = [replace(agent(settings, {}, crons=[job]), queue=queue) for queue in (own, other)]
    arqs = create_worker(both[1].arq_settings(), handle_signals=False)
    async with serving(both[0]):
        running = asyncio.create_task(arqs.async_run())
        await eventually(lambda: arqs.jobs_complete >= count, "arq came by", timeout_s=60)
        running.cancel()
        await asyncio.wait({running})
        # What it runs ends by itself: a close that cancels it raises, and leaves connections open.
        if arqs.tasks:
            await asyncio.wait(arqs.tasks.values())
        with pytest.deprecated_call():
            await arqs.close()
    send = store.transport.sender.send
    # The next run waits there.
    await send("DEL", key_of_queue(settings, other), repeatable=True)
    taken = f"{store.base.keys.cron(job.name, 0).removesuffix('0')}*"
    moments = await send("KEYS", taken, repeatable=True)
    assert 1 <= runs <= len(moments)


async def test_a_worker_that_drains_leaves_the_moments_to_others(
    store: RedisStateStore, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ended, runs = asyncio.Event(), Counter[str]()

    async def hold(_: TaskContext) -> None:
        await ended.wait()

    def ticking(name: str, **options: Any) -> AgentWorker:
        async def tick(ctx: dict[Any, Any]) -> None:
            del ctx
            runs[name] += 1

        # Each worker would run it.
        job = cron(tick, name="cron:tick", second=None, unique=False)
        return agent(settings, {"hold": hold}, crons=[job], **options)

    async with client_of(store) as client:
        draining = asyncio.create_task(ticking("draining", grace_s=60).serve())
        task = await client.submit("hold", session_id=SESSION)
        await becomes(client, task, TaskStatus.RUNNING)
        await eventually(lambda: runs["draining"], "it has cron jobs")
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: "they may finish for" in caplog.text, "it drains")
        before = runs["draining"]
        async with serving(ticking("other")):
            await eventually(lambda: runs["other"] >= 2, "others run it", timeout_s=30)
        ended.set()
        await draining
    assert runs["draining"] == before


@pytest.mark.role("any", why="arq's own queue needs more")
async def test_a_worker_that_does_not_know_a_cron_job_goes_on(
    store: RedisStateStore, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    needs_arqs_runner(settings.url.get_secret_value())
    pool = await create_pool(arq_server(settings))
    job = f"{store.base.keys.jobs_tag}/cron:other"
    await pool.enqueue_job("cron:other", _queue_name=key_of_queue(settings), _job_id=job)
    await pool.aclose(close_connection_pool=True)
    async with serving(agent(settings, {"noop": noop})), client_of(store) as client:
        await eventually(lambda: "a job that names no task" in caplog.text, "it was looked at")
        task = await client.submit("noop", None, session_id=SESSION)
        assert (await becomes(client, task, TaskStatus.COMPLETE)).result == "done"


def test_workers_that_began_before_and_after_a_change_of_the_clocks_mean_one_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def due(began: str, *, hour: int | set[int] | None = None) -> datetime | None:
        job = cron(_nothing, name="cron:it", hour=hour, minute=0, second=0, microsecond=0)
        plan_next(job, read(began).astimezone())
        return job.next_run

    read = datetime.fromisoformat
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        # The hour from 2 to 3 comes twice on 25 October, and is skipped on 29 March.
        for began in ("2026-10-25T02:00+02:00", "2026-10-25T02:30+01:00"):
            assert due(began, hour=2) == read("2026-10-26T02:00+01:00")
        for began in ("2026-10-24T09:00+02:00", "2026-10-25T02:30+02:00"):
            assert due(began, hour=3) == read("2026-10-25T03:00+01:00")
        assert due("2026-10-25T02:30+02:00") == read("2026-10-25T02:00+01:00")
        assert due("2026-10-25T02:00+01:00") == read("2026-10-25T03:00+01:00")
        for began in ("2026-03-28T09:00+01:00", "2026-03-29T01:30+01:00"):
            for hour in (2, 3):
                assert due(began, hour=hour) == read("2026-03-29T03:00+02:00")
        # By the clocks of before, 3 is when it is 4 by those of then.
        for began in ("2026-03-29T01:30+01:00", "2026-03-29T01:59+01:00"):
            assert due(began, hour={3, 4}) == read("2026-03-29T03:00+02:00")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_arqs_settings_have_the_cron_jobs_each_time_their_own() -> None:
    job = cleanup_cron(Noting.__new__(Noting))
    worker = AgentWorker({"noop": noop}, crons=[job])
    (one,), (other,) = (worker.arq_settings().cron_jobs for _ in range(2))  # type: ignore[attr-defined]
    assert one is not other
    assert one is not job
    assert (job.name, job.hour, job.minute, job.unique) == ("cron:cleanup_old_tasks", 2, 0, True)


async def _nothing(ctx: dict[Any, Any]) -> None:
    del ctx


def test_cron_jobs_that_cannot_be_are_refused() -> None:
    clean = Noting.__new__(Noting)
    with pytest.raises(ConfigError, match="older_than"):
        cleanup_cron(clean, older_than=timedelta(seconds=-1))
    with pytest.raises(ConfigError, match="name"):
        cleanup_cron(clean, name="")
    nothing: Any = None
    job: CronJob = cleanup_cron(clean)
    for crons, problem in [
        ([job, cleanup_cron(clean)], "twice"),
        ([nothing], "cleanup_cron"),
        ([cron(_nothing, name="nightly")], "'nightly'"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            AgentWorker({"noop": noop}, crons=crons)


async def _counts(tasks: TaskStateManager, wanted: TaskCounts) -> bool:
    return await tasks.count_tasks() == wanted
