"""PenguiFlow's job store under PenguiFlow's own scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from penguiflow.sessions.scheduler import (
    InMemoryJobStore,
    JobDefinition,
    JobRunRecord,
    JobScheduler,
    JobSchedulerRunner,
    ScheduleConfig,
)

from redis_state import BackendUnavailable, InvalidField, Settings
from redis_state.errors import LostRace
from redis_state.integrations.penguiflow import PenguiflowJobStore, create_job_store
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.scripts.replies import ask, clock_ms, clock_passes
from tests.support.servers.faults import Proxy, run_processes, start_process

NOW = datetime.now(UTC)
BRIEF = timedelta(milliseconds=80)
# Long enough to be renewed in time where the machine stands still for a while.
KEPT_MS = 500
KEPT = timedelta(milliseconds=KEPT_MS)


def make(settings: Settings, **options: Any) -> PenguiflowJobStore:
    url = options.pop("url", settings.url.get_secret_value())
    return create_job_store(url=url, namespace=settings.namespace, **options)


def job(job_id: str, *, due: datetime | None = NOW, every: int | None = None, **more: Any) -> Any:
    schedule = ScheduleConfig(next_run_at=due, interval_s=every)
    fields: dict[str, Any] = {"session_id": "s", **more}
    return JobDefinition(job_id=job_id, schedule=schedule, **fields)


def ids(jobs: Sequence[JobDefinition]) -> list[str]:
    return [found.job_id for found in jobs]


class Spawned(list[str]):
    """Notes what a scheduler spawns; ``fails`` names jobs whose spawning fails."""

    def __init__(self, *fails: str) -> None:
        super().__init__()
        self.fails = fails

    async def __call__(self, found: JobDefinition) -> str:
        self.append(found.job_id)
        if found.job_id in self.fails:
            raise RuntimeError("a secret payload")
        return ""


@pytest.fixture
async def jobs(settings: Settings) -> AsyncIterator[PenguiflowJobStore]:
    async with make(settings) as made:
        yield made


@pytest.fixture(params=["upstream", "ours"])
async def either(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[Any]:
    """Give upstream's own store and ours, so that both are asked the same."""
    if request.param == "upstream":
        yield InMemoryJobStore()
        return
    async with make(settings) as made:
        yield made


# The same on upstream's store and ours


async def test_jobs_are_listed_as_saved_in_the_order_of_their_first_save(either: Any) -> None:
    assert await either.list_jobs() == []
    saved = [
        job("b", task_payload={"a": [1, {"b": None}]}, delivery_policy={"to": "é"}),
        job("a", session_id="other", due=None, enabled=False),
        job("c:{x}*", every=60, due=NOW.astimezone(timezone(timedelta(hours=2)))),
    ]
    for one in saved:
        await either.save_job(one)
    await either.save_job(saved[0])
    assert await either.list_jobs() == saved
    assert await either.list_jobs("s") == [saved[0], saved[2]]
    assert ids(await either.list_jobs("other")) == ["a"]
    assert await either.list_jobs("nobody") == []


async def test_saving_refreshes_the_time_on_the_callers_object(either: Any) -> None:
    one = job("a", updated_at=NOW - timedelta(days=1))
    await either.save_job(one)
    assert one.updated_at >= NOW
    assert (await either.list_jobs())[0].updated_at == one.updated_at


async def test_due_are_enabled_jobs_at_or_before_the_moment_asked_for(either: Any) -> None:
    moment = NOW + timedelta(days=300)
    step = timedelta(microseconds=1)
    await either.save_job(job("at", due=moment))
    await either.save_job(job("after", due=moment + step))
    await either.save_job(job("never", due=None))
    await either.save_job(job("disabled", due=moment, enabled=False))
    assert ids(await either.list_due(moment - step)) == []
    assert ids(await either.list_due(moment)) == ["at"]


async def test_a_session_that_a_job_has_left_does_not_list_it(either: Any) -> None:
    await either.save_job(job("a"))
    await either.save_job(job("a", session_id="other"))
    assert ids(await either.list_jobs("s")) == []
    assert ids(await either.list_jobs("other")) == ["a"]


async def test_the_scheduler_spawns_what_is_due_and_records_it(either: Any) -> None:
    spawned = Spawned()
    for one in (job("once"), job("often", every=3600), job("later", due=NOW + timedelta(days=1))):
        await either.save_job(one)
    await JobScheduler(store=either, spawn=spawned).tick()
    assert sorted(spawned) == ["often", "once"]
    assert ids(await either.list_jobs()) == ["once", "often", "later"]
    (often,) = [one for one in await either.list_jobs() if one.job_id == "often"]
    assert often.schedule.next_run_at is not None
    assert often.schedule.next_run_at > NOW


# What upstream's does not


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


async def test_500_jobs_are_claimed_at_once_and_the_rest_are_left_for_others(
    settings: Settings,
) -> None:
    async with make(settings) as one, make(settings) as other:
        await asyncio.gather(*(one.save_job(job(f"{n:03}")) for n in range(520)))
        assert len(await one.list_due(NOW)) == 500
        assert ids(await other.list_due(NOW)) == [f"{n:03}" for n in range(500, 520)]


def shared(settings: Settings, **more: Any) -> dict[str, Any]:
    url = settings.url.get_secret_value()
    return {"url": url, "namespace": settings.namespace, **more}


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
