"""A due job of PenguiFlow goes to one scheduler, and fires once, whichever dies or is cut off."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from penguiflow.sessions.scheduler import (
    JobDefinition,
    JobRunRecord,
    JobScheduler,
)

from redis_state import BackendUnavailable, Settings
from redis_state.errors import LostRace
from redis_state.integrations.penguiflow import PenguiflowJobStore
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.penguiflow.jobs import BRIEF, KEPT, KEPT_MS, NOW, ids, job, make
from tests.support.samples import shared
from tests.support.scripts.replies import ask, clock_ms, clock_passes
from tests.support.servers.faults import Proxy, run_processes, start_process


async def test_two_schedulers_are_never_given_the_same_occurrence(settings: Settings) -> None:
    async with make(settings) as one, make(settings) as other:
        for n in range(100):
            await one.save_job(job(f"{n:03}"))
        found = await asyncio.gather(one.list_due(NOW), other.list_due(NOW), one.list_due(NOW))
        assert sorted(name for part in found for name in ids(part)) == [
            f"{n:03}" for n in range(100)
        ]
        assert await other.list_due(NOW) == []


async def test_a_claim_that_nobody_renews_is_given_to_the_next_who_asks(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings, job_lease=KEPT) as dead, make(settings) as alive:
        await dead.save_job(job("a"))
        assert ids(await dead.list_due(NOW)) == ["a"]
        assert ids(await alive.list_due(NOW)) == []
        await clock_passes(scripts, await clock_ms(scripts) + KEPT_MS)
        assert ids(await alive.list_due(NOW)) == ["a"]
        with pytest.raises(LostRace, match="'a'"):
            await dead.record_run(JobRunRecord(job_id="a"))


async def test_of_two_schedulers_of_a_process_the_one_that_stalled_spawns_nothing(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings, job_lease=BRIEF) as jobs:
        await jobs.save_job(job("a"))
        (stalled,) = await jobs.list_due(NOW)
        await clock_passes(scripts, await clock_ms(scripts) + 90)
        claimed, goes_on = asyncio.Event(), asyncio.Event()

        async def other() -> list[str]:
            due = list(await jobs.list_due(NOW))
            claimed.set()
            await goes_on.wait()
            for found in due:
                await jobs.record_run(JobRunRecord(job_id=found.job_id))
            return ids(due)

        second = asyncio.create_task(other())
        await claimed.wait()
        with pytest.raises(LostRace):
            await jobs.record_run(JobRunRecord(job_id=stalled.job_id))
        goes_on.set()
        assert await second == ["a"]
        assert len(await jobs.list_runs("a")) == 1


async def test_a_spawn_that_outlasts_its_lease_keeps_its_job(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings, job_lease=KEPT) as slow, make(settings) as other:
        for name in ("a", "b"):
            await slow.save_job(job(name))
        stolen: list[str] = []

        async def spawn(_: JobDefinition) -> str:
            end = await clock_ms(scripts) + 3 * KEPT_MS
            while await clock_ms(scripts) < end:
                stolen.extend(ids(await other.list_due(NOW)))
            return ""

        await JobScheduler(store=slow, spawn=spawn).tick()
        await slow.drain()
        assert stolen == []
        assert [len(await slow.list_runs(name)) for name in ("a", "b")] == [1, 1]
        assert ids(await other.list_due(NOW)) == []


@pytest.mark.chaos
async def test_a_run_that_could_not_be_recorded_is_no_firing(settings: Settings) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy, make(settings) as other:
        options = {"url": proxy.url, "call_timeout_s": 1.0, "job_lease": BRIEF}
        far = make(settings, **options)
        await far.save_job(job("a"))
        for found in await far.list_due(NOW):
            proxy.refuse()
            proxy.cut()
            with pytest.raises(BackendUnavailable):
                await far.record_run(JobRunRecord(job_id=found.job_id))
            proxy.refuse(refusing=False)
        await far.drain()
        assert proxy.cuts

        async def offered() -> list[str]:
            return ids(await other.list_due(NOW))

        assert await eventually(offered, "the claim runs out") == ["a"]
        await far.aclose()


@pytest.mark.chaos
async def test_a_server_away_when_a_job_was_spawned_is_told_when_it_is_back(
    settings: Settings,
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        jobs = make(settings, url=proxy.url, call_timeout_s=2.0)

        async def spawn(_: JobDefinition) -> str:
            proxy.refuse()
            proxy.cut()
            return ""

        await jobs.save_job(job("once"))
        await JobScheduler(store=jobs, spawn=spawn).tick()
        assert proxy.cuts
        # More often than one call tries.
        await eventually(lambda: proxy.refused > 8, "the store tries to tell")
        proxy.refuse(refusing=False)
        await jobs.drain(20)
        (left,) = await jobs.list_jobs()
        assert left.schedule.next_run_at is None
        await jobs.aclose()


@pytest.mark.chaos
async def test_a_server_that_stays_away_gives_the_job_to_its_lease(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy, make(settings) as other:
        jobs = make(settings, url=proxy.url, call_timeout_s=1.0, job_lease=BRIEF)

        async def spawn(_: JobDefinition) -> str:
            proxy.refuse()
            proxy.cut()
            return ""

        await jobs.save_job(job("once"))
        await JobScheduler(store=jobs, spawn=spawn).tick()
        await eventually(lambda: "could not be written" in caplog.text, "the store gives it up")
        assert proxy.cuts
        assert ids(await other.list_due(NOW)) == ["once"]
        await jobs.aclose()


async def test_who_lost_his_job_while_it_ran_does_not_end_the_other_ones_claim(
    jobs: PenguiflowJobStore, scripts: Scripts
) -> None:
    key = jobs.base.keys.job("a")

    async def spawn(_: JobDefinition) -> str:
        await ask(scripts, "HSET", key, "owner", "other", "claim", "other")
        return ""

    await jobs.save_job(job("a", every=60))
    await JobScheduler(store=jobs, spawn=spawn).tick()
    await jobs.drain()
    assert await ask(scripts, "HGET", key, "owner") == b"other"
    (left,) = await jobs.list_jobs()
    assert left.schedule.next_run_at == NOW


async def test_500_jobs_are_claimed_at_once_and_the_rest_are_left_for_others(
    settings: Settings,
) -> None:
    async with make(settings) as one, make(settings) as other:
        await asyncio.gather(*(one.save_job(job(f"{n:03}")) for n in range(520)))
        assert len(await one.list_due(NOW)) == 500
        assert ids(await other.list_due(NOW)) == [f"{n:03}" for n in range(500, 520)]


async def recorded(scripts: Scripts, settings: Settings) -> list[tuple[str, str]]:
    key = f"{settings.namespace}:v1:{{recorded}}:spawned"
    lines = await ask(scripts, "LRANGE", key, 0, -1)
    return [(pid, name) for pid, _, name in (line.decode().partition(" ") for line in lines)]


@pytest.mark.slow
async def test_of_4_processes_schedulers_each_of_200_due_jobs_is_fired_once(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings) as jobs:
        for n in range(200):
            await jobs.save_job(job(f"{n:03}", every=3600 if n % 2 else None))
        argument = shared(settings, processes=4, expected=200)
        results = await run_processes("schedule_jobs", [argument] * 4)
        spawned = await recorded(scripts, settings)
        assert sorted(name for _, name in spawned) == [f"{n:03}" for n in range(200)]
        assert sum(len(result["mine"]) for result in results) == 200
        for n, found in enumerate(await jobs.list_jobs()):
            wanted = NOW + timedelta(hours=1) if n % 2 else None
            assert found.schedule.next_run_at == wanted
            assert len(await jobs.list_runs(found.job_id)) == 1


@pytest.mark.chaos
@pytest.mark.slow
async def test_the_job_of_a_killed_scheduler_is_fired_by_another_after_its_lease(
    settings: Settings, scripts: Scripts
) -> None:
    options = {"job_lease": 1.0}
    async with make(settings, job_lease=timedelta(seconds=1)) as jobs:
        await jobs.save_job(job("a"))
        hanging = shared(settings, processes=1, expected=99, hangs=True, options=options)
        process = await start_process("schedule_jobs", hanging)

        async def begun() -> list[tuple[str, str]]:
            return await recorded(scripts, settings)

        await eventually(begun, "the job is being spawned", timeout_s=30)
        assert ids(await jobs.list_due(NOW)) == []
        process.kill()
        assert await process.wait() < 0
        (survivor,) = await run_processes(
            "schedule_jobs", [shared(settings, processes=1, expected=2, options=options)]
        )
        assert survivor["mine"] == ["a"]
        assert [name for _, name in await begun()] == ["a", "a"]
        assert len(await jobs.list_runs("a")) == 2
