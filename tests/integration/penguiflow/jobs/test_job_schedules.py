"""When a job of PenguiFlow fires again, and what is kept of it meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from penguiflow.sessions.scheduler import (
    JobDefinition,
    JobRunRecord,
    JobScheduler,
)

from redis_state import InvalidField, Settings
from redis_state.integrations.penguiflow import PenguiflowJobStore
from redis_state.scripts import Scripts
from tests.support.penguiflow.jobs import NOW, Spawned, ids, job, make
from tests.support.scripts.replies import ask


async def test_a_one_shot_job_fires_once(jobs: PenguiflowJobStore) -> None:
    spawned = Spawned()
    one = job("once")
    await jobs.save_job(one)
    for _ in range(5):
        await JobScheduler(store=jobs, spawn=spawned).tick()
        await jobs.drain()
    assert spawned == ["once"]
    (left,) = await jobs.list_jobs()
    assert left.schedule.next_run_at is None
    assert left.enabled
    # A late save of the job as it was does not bring it back; a new time does.
    await jobs.save_job(one)
    await JobScheduler(store=jobs, spawn=spawned).tick()
    assert spawned == ["once"]
    await jobs.save_job(job("once", due=NOW - timedelta(seconds=1)))
    await JobScheduler(store=jobs, spawn=spawned).tick()
    assert spawned == ["once", "once"]
    assert len(await jobs.list_runs("once")) == 2


async def test_a_job_keeps_its_rhythm_and_fires_once_for_all_that_it_missed(
    jobs: PenguiflowJobStore,
) -> None:
    first = NOW - timedelta(seconds=1005)
    spawned = Spawned()
    await jobs.save_job(job("late", due=first, every=10))
    before = datetime.now(UTC)
    for _ in range(3):
        await JobScheduler(store=jobs, spawn=spawned).tick()
    assert spawned == ["late"]
    (left,) = await jobs.list_jobs()
    due = left.schedule.next_run_at
    assert due is not None
    assert (due - first) % timedelta(seconds=10) == timedelta(0)
    # By the server's clock, which need not be ours to the second.
    assert before < due <= datetime.now(UTC) + timedelta(seconds=11)


async def test_a_scheduler_whose_clock_is_ahead_fires_early_but_not_twice(
    jobs: PenguiflowJobStore,
) -> None:
    await jobs.save_job(job("a", every=60))
    ahead = NOW + timedelta(hours=3, seconds=1)
    for due in await jobs.list_due(ahead):
        await jobs.record_run(JobRunRecord(job_id=due.job_id))
    await jobs.drain()
    assert ids(await jobs.list_due(ahead)) == []
    (left,) = await jobs.list_jobs()
    assert left.schedule.next_run_at == NOW + timedelta(hours=3, minutes=1)


async def test_a_run_that_ended_is_the_same_run(jobs: PenguiflowJobStore) -> None:
    run = JobRunRecord(job_id="a")
    await jobs.record_run(run)
    await jobs.record_run(run)
    done = run.model_copy(update={"completed_at": NOW, "status": "ok", "result": {"n": 0}})
    await jobs.record_run(done)
    other = JobRunRecord(job_id="a")
    await jobs.record_run(other)
    assert await jobs.list_runs("a") == [done, other]
    assert await jobs.list_runs("b") == []


@pytest.mark.parametrize("every", [None, 3600])
async def test_what_the_spawned_task_saves_of_its_own_job_stands(
    jobs: PenguiflowJobStore, every: int | None
) -> None:
    later = NOW + timedelta(days=2)

    async def spawn(found: JobDefinition) -> str:
        found.task_payload["count"] = 1
        if every is None:
            found.schedule.next_run_at = later
        await jobs.save_job(found)
        return ""

    await jobs.save_job(job("a", every=every))
    await JobScheduler(store=jobs, spawn=spawn).tick()
    await jobs.drain()
    (left,) = await jobs.list_jobs()
    assert left.task_payload == {"count": 1}
    assert left.schedule.next_run_at == (later if every is None else NOW + timedelta(hours=1))


async def test_an_edit_made_while_the_job_runs_is_not_undone_by_the_scheduler(
    settings: Settings,
) -> None:
    async with make(settings) as jobs, make(settings) as elsewhere:

        async def spawn(_: JobDefinition) -> str:
            (found,) = await elsewhere.list_jobs()
            found.enabled = False
            await elsewhere.save_job(found)
            return ""

        await jobs.save_job(job("a", every=1))
        await JobScheduler(store=jobs, spawn=spawn).tick()
        await jobs.drain()
        (left,) = await jobs.list_jobs()
        assert not left.enabled
        assert ids(await elsewhere.list_due(NOW + timedelta(days=1))) == []


@pytest.mark.parametrize("every", [0, -5])
async def test_an_interval_that_never_passes_is_refused(
    jobs: PenguiflowJobStore, every: int
) -> None:
    with pytest.raises(InvalidField, match="interval_s"):
        await jobs.save_job(job("a", every=every))
    assert await jobs.list_jobs() == []


@pytest.mark.parametrize("document", [b"{]", b"[]", b'{"session_id":"s"}'])
async def test_a_job_that_cannot_be_read_is_set_aside_and_stops_nobody(
    jobs: PenguiflowJobStore, scripts: Scripts, document: bytes
) -> None:
    for name in ("bad", "good"):
        await jobs.save_job(job(name))
    await ask(scripts, "HSET", jobs.base.keys.job("bad"), "document", document)
    assert ids(await jobs.list_jobs()) == ["good"]
    assert ids(await jobs.list_due(NOW)) == ["good"]
    assert jobs.base.counters.unreadable_rows == 1


KEYS: list[Callable[[PenguiflowJobStore], str]] = [
    lambda jobs: jobs.base.keys.job("a"),
    lambda jobs: jobs.base.keys.jobs(),
    lambda jobs: jobs.base.keys.jobs_due(),
]


@pytest.mark.parametrize("name", KEYS)
async def test_a_job_lives_beyond_its_next_occurrence(
    settings: Settings, scripts: Scripts, name: Callable[[PenguiflowJobStore], str]
) -> None:
    async with make(settings, jobs_ttl=timedelta(hours=1)) as jobs:
        await jobs.save_job(job("a", due=NOW + timedelta(days=30)))
        await jobs.save_job(job("b"))
        left_ms = int(await ask(scripts, "PTTL", name(jobs)))
        assert left_ms > timedelta(days=30) / timedelta(milliseconds=1)
