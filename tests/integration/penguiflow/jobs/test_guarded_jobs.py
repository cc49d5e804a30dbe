"""Jobs of PenguiFlow whose spawning fails, with the guard and without."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from penguiflow.sessions.scheduler import (
    JobDefinition,
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
from tests.support.servers.faults import Proxy


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


@pytest.mark.chaos
async def test_guarded_a_server_that_is_away_does_not_end_the_scheduler(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    spawned: list[str] = []
    async with Proxy(settings.url.get_secret_value()) as proxy, make(settings) as other:
        jobs = make(settings, url=proxy.url, call_timeout_s=1.0, job_lease=BRIEF)

        def away() -> None:
            proxy.refuse()
            proxy.cut()

        async def spawn(found: JobDefinition) -> str:
            spawned.append(found.job_id)
            if len(spawned) == 1:
                away()
                await jobs.list_jobs()
            return ""

        scheduler = JobScheduler(store=jobs, spawn=jobs.guarded(spawn))
        runner = JobSchedulerRunner(scheduler, poll_interval_s=0.01)
        await jobs.list_jobs()
        away()
        await runner.start()
        await eventually(lambda: "due jobs cannot be read" in caplog.text, "it has looked")
        proxy.refuse(refusing=False)
        await other.save_job(job("a"))
        await eventually(lambda: "a failed run of job 'a' cannot" in caplog.text, "it has failed")
        proxy.refuse(refusing=False)
        await eventually(lambda: len(spawned) > 1, "it is offered again")
        await runner.stop()
        await jobs.aclose()
    assert proxy.cuts


@pytest.mark.chaos
async def test_guarded_a_job_whose_run_could_not_be_recorded_is_left_out(
    settings: Settings,
) -> None:
    spawned = Spawned()
    async with Proxy(settings.url.get_secret_value()) as proxy, make(settings) as other:
        far = make(settings, url=proxy.url, call_timeout_s=1.0, job_lease=BRIEF)
        guarded = far.guarded(spawned)
        await far.save_job(job("a", every=3600))
        for found in await far.list_due(NOW):
            proxy.refuse()
            proxy.cut()
            await far.record_run(JobRunRecord(job_id=found.job_id))
            await guarded(found)
            found.schedule.next_run_at = found.schedule.next_after(NOW)
            await far.save_job(found)
            proxy.refuse(refusing=False)
        await far.drain()
        assert proxy.cuts

        async def offered() -> list[str]:
            return ids(await other.list_due(NOW))

        assert await eventually(offered, "the claim runs out") == ["a"]
        await far.aclose()
    assert spawned == []
