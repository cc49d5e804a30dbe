"""Jobs of PenguiFlow whose spawning fails, with the guard and without."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from penguiflow.sessions.scheduler import (
    JobRunRecord,
    JobScheduler,
    JobSchedulerRunner,
)

from redis_state import Settings
from redis_state.integrations.penguiflow import PenguiflowJobStore
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.penguiflow.jobs import BRIEF, NOW, Spawned, ids, job, make
from tests.support.scripts.replies import ask, clock_ms, clock_passes


async def test_a_spawn_that_fails_is_offered_again_and_what_followed_it_at_once(
    settings: Settings, scripts: Scripts
) -> None:
    spawned = Spawned("a")
    async with make(settings, job_lease=timedelta(seconds=1)) as jobs, make(settings) as other:
        for name in ("a", "b"):
            await jobs.save_job(job(name))
        with pytest.raises(RuntimeError):
            await JobScheduler(store=jobs, spawn=spawned).tick()
        assert spawned == ["a"]
        await jobs.drain()
        assert ids(await other.list_due(NOW)) == ["b"]

        async def offered() -> list[str]:
            return ids(await other.list_due(NOW))

        assert await eventually(offered, "the lease of a runs out") == ["a"]


async def test_guarded_a_failing_spawn_ends_neither_the_scheduler_nor_the_job(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    spawned = Spawned("poison", "poison often")
    async with make(settings, job_lease=BRIEF, job_attempts=3) as jobs:
        await jobs.save_job(job("poison"))
        await jobs.save_job(job("poison often", every=3600))
        await jobs.save_job(job("fine"))
        runner = JobSchedulerRunner(
            JobScheduler(store=jobs, spawn=jobs.guarded(spawned)), poll_interval_s=0.01
        )
        await runner.start()

        async def given_up() -> bool:
            names = [await jobs.list_runs(name) for name in ("poison", "poison often")]
            return all(runs[-1:] and runs[-1].status == "given_up" for runs in names)

        await eventually(given_up, "both jobs are given up")
        await runner.stop()
    assert sorted(spawned) == ["fine", *["poison"] * 3, *["poison often"] * 3]
    async with make(settings) as jobs:
        statuses = [run.status for run in await jobs.list_runs("poison")]
        assert statuses == [None, "failed", None, "failed", None, "failed", "given_up"]
        poison, often, _ = await jobs.list_jobs()
        assert poison.schedule.next_run_at is None
        assert often.schedule.next_run_at == NOW + timedelta(hours=1)
    assert "poison" in caplog.text
    assert "secret payload" not in caplog.text


async def test_without_the_guard_upstreams_runner_ends_at_the_first_error(
    jobs: PenguiflowJobStore,
) -> None:
    await jobs.save_job(job("a"))
    runner = JobSchedulerRunner(JobScheduler(store=jobs, spawn=Spawned("a")), poll_interval_s=0.01)
    await runner.start()
    task = runner._task
    assert task is not None
    await asyncio.wait({task})
    assert isinstance(task.exception(), RuntimeError)
    await runner.stop()


async def test_a_guarded_spawn_leaves_out_what_another_has_taken(
    settings: Settings, scripts: Scripts
) -> None:
    spawned = Spawned()
    async with make(settings, job_lease=BRIEF) as slow, make(settings) as other:
        guarded = slow.guarded(spawned)
        for name in ("a", "b"):
            await slow.save_job(job(name))
        due = await slow.list_due(NOW)
        await clock_passes(scripts, await clock_ms(scripts) + 90)
        await ask(scripts, "ZREM", slow.base.keys.jobs_due(), "b")
        assert ids(await other.list_due(NOW)) == ["a"]
        for found in due:
            await slow.record_run(JobRunRecord(job_id=found.job_id))
            await guarded(found)
        await slow.drain()
        assert spawned == ["b"]
        assert await slow.list_runs("a") == []


async def test_a_guarded_spawn_may_fail_for_what_was_never_claimed(
    jobs: PenguiflowJobStore,
) -> None:
    assert await jobs.guarded(Spawned("a"))(job("a")) == ""
    assert [run.status for run in await jobs.list_runs("a")] == ["failed"]
