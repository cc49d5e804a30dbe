"""A loop over PenguiFlow's due jobs fires those that it comes to, and holds no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from penguiflow.sessions.scheduler import (
    JobDefinition,
    JobRunRecord,
)

from redis_state import Settings
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.penguiflow.jobs import BRIEF, KEPT, KEPT_MS, NOW, ids, job, make
from tests.support.scripts.replies import clock_ms, clock_passes


async def test_outside_of_a_loop_over_the_list_a_recorded_run_is_the_firing(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings, job_lease=KEPT) as jobs:
        for name in ("a", "b"):
            await jobs.save_job(job(name))
        due = await jobs.list_due(NOW)
        for found in list(due):
            await jobs.record_run(JobRunRecord(job_id=found.job_id))
        await clock_passes(scripts, await clock_ms(scripts) + KEPT_MS + 10)
        assert ids(await jobs.list_due(NOW)) == []


async def test_looking_at_the_list_fires_nothing(settings: Settings, scripts: Scripts) -> None:
    async with make(settings, job_lease=BRIEF) as jobs:
        await jobs.save_job(job("a"))
        assert [found.job_id for found in await jobs.list_due(NOW)] == ["a"]
        await jobs.drain()
        await clock_passes(scripts, await clock_ms(scripts) + 90)
        assert ids(await jobs.list_due(NOW)) == ["a"]


async def test_a_loop_that_was_left_early_can_be_gone_through_again(
    settings: Settings, scripts: Scripts
) -> None:
    async with make(settings, job_lease=KEPT) as jobs, make(settings) as other:
        for name in ("a", "b", "c"):
            await jobs.save_job(job(name))
        due = await jobs.list_due(NOW)
        assert any(found.job_id == "a" for found in due)
        for found in due:
            await jobs.record_run(JobRunRecord(job_id=found.job_id))
        await jobs.drain()
        await clock_passes(scripts, await clock_ms(scripts) + KEPT_MS + 10)
        assert ids(await other.list_due(NOW)) == []
        assert [len(await jobs.list_runs(name)) for name in ("a", "b", "c")] == [1, 1, 1]


async def test_a_loop_that_stands_still_when_its_task_has_ended_holds_nothing(
    settings: Settings,
) -> None:
    async with make(settings, job_lease=BRIEF) as jobs, make(settings) as other:
        await jobs.save_job(job("a"))

        async def stop_in_between() -> Iterator[JobDefinition]:
            walk = iter(await jobs.list_due(NOW))
            assert next(walk).job_id == "a"
            return walk

        walk = await asyncio.create_task(stop_in_between())

        async def offered() -> list[str]:
            return ids(await other.list_due(NOW))

        assert await eventually(offered, "the lease of a runs out") == ["a"]
        assert list(walk) == []


async def test_a_job_begun_outside_of_the_loop_that_was_left_is_not_given_back(
    settings: Settings,
) -> None:
    async with make(settings) as jobs, make(settings) as other:
        for name in ("a", "b", "c"):
            await jobs.save_job(job(name))
        walk = iter(await jobs.list_due(NOW))
        assert next(walk).job_id == "a"
        del walk
        await jobs.record_run(JobRunRecord(job_id="b"))
        await jobs.drain()
        assert ids(await other.list_due(NOW)) == ["c"]


def test_the_list_can_be_looked_at_when_its_event_loop_has_ended(settings: Settings) -> None:
    jobs = make(settings)

    async def claim() -> Sequence[JobDefinition]:
        for name in ("a", "b"):
            await jobs.save_job(job(name))
        return await jobs.list_due(NOW)

    due = asyncio.run(claim())
    walk = iter(due)
    assert next(walk).job_id == "a"
    del walk
    assert ids(due) == ["a", "b"]
