"""How the tasks of a schedule wait: under a key, in turn, in the way of others; and are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, InvalidField, OutcomeUnknown
from redis_state.models import TaskStatus
from redis_state.scripts import Reply, Scripts
from redis_state.stores.schedules import PlannedTask
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.queue.queue import Queue
from redis_state.worker.schedules.runner import ScheduleRunner
from redis_state.worker.schedules.submit import Submitter
from tests.support.processes.pools import SESSION, becomes, client_of, pool, queue_of
from tests.support.scripts.replies import clock_ms, clock_passes
from tests.support.servers.sets.nodes import primaries
from tests.support.tasks.schedules import hourly, running, settled_before

HOUR = timedelta(hours=1)
UNTIL = datetime(2026, 3, 1, tzinfo=UTC)
FIRST_DAY = datetime(1, 1, 1, tzinfo=UTC)


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as made:
        yield made


@pytest.fixture
async def runner(store: RedisStateStore) -> AsyncIterator[ScheduleRunner]:
    async with running(store) as made:
        yield made


async def keys_of(store: RedisStateStore) -> set[str]:
    found = [
        await store.tasks.look(SESSION, task.task_id) for task in await store.list_tasks(SESSION)
    ]
    return {view.key for view in found if view is not None}


async def tasks_there(store: RedisStateStore) -> int:
    return len(await store.list_tasks(SESSION))


async def claimed(store: RedisStateStore) -> list[str]:
    """Claim what may begin now, and keep it."""
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts))
    queue = Queue(store, name=queue_of(store.settings))
    found = await queue.claim(queue.name, limit=10)
    await queue.aclose()
    return [job.task.task_id for job in found if job.task is not None]


async def test_the_tasks_have_the_schedules_key_and_are_found_by_its_attributes(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    await client.queues.limit(queue_of(store.settings), per_key=2)
    tenant = {"tenant": "acme"}
    saved = await client.schedules.save(hourly(limit_key="acme", attributes=tenant, missed="all"))
    assert (saved.schedule.limit_key, saved.schedule.attributes) == ("acme", tenant)
    await settled_before(store, hours=3)
    await runner.run_once()
    triggered = await client.schedules.trigger("s")
    found = await client.find(attributes=tenant)
    assert len(found.tasks) == 4
    assert triggered.task_id in [task.task_id for task in found.tasks]
    assert await keys_of(store) == {"k:acme"}
    assert len(await claimed(store)) == 2


async def test_the_tasks_of_a_session_run_in_turn_in_the_order_of_their_occurrences(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    await client.schedules.save(hourly(in_turn=True, missed="all"))
    await settled_before(store, hours=3)
    await runner.run_once()
    given = list[str]()

    async def who(ctx: TaskContext) -> None:
        given.append(ctx.task.task_id)

    tasks = sorted(task.task_id for task in await store.list_tasks(SESSION))
    assert len(tasks) == 3
    async with pool(store, {"who": who}):
        for task in tasks:
            await client.wait(SESSION, task, timeout_s=60)
    assert given == tasks


async def test_a_new_occurrence_interrupts_or_replaces_the_one_before(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner
) -> None:
    async def who(ctx: TaskContext) -> str:
        if not ctx.task.task_id.endswith("second"):
            await ctx.approval("go on?")
        return "done"

    await client.schedules.save(hourly(on_busy="replace", missed="all"))
    await settled_before(store, hours=3)
    await runner.run_once()
    states = {task.task_id: task.status for task in await store.list_tasks(SESSION)}
    last = max(states)
    assert states.pop(last) is TaskStatus.PENDING
    assert set(states.values()) == {TaskStatus.CANCELLED}
    await client.schedules.save(hourly(on_busy="interrupt", missed="all"))
    async with pool(store, {"who": who}, schedules=False):
        await becomes(client, last, TaskStatus.PAUSED)
        second = await client.schedules.trigger("s", idempotency_key="second")
        assert await client.result(SESSION, second.task_id, timeout_s=60) == "done"
    stopped = await client.get(SESSION, last)
    assert stopped is not None
    assert stopped.error == f"interrupted by task {second.task_id!r}"


async def test_a_backfill_cancels_nothing_and_may_have_a_key_of_its_own(
    store: RedisStateStore, client: TaskClient
) -> None:
    await client.queues.limit_key(queue_of(store.settings), "backfill", running=1)
    await client.schedules.save(hourly(on_busy="replace", attributes={"of": "s"}))
    since = UNTIL - 3 * HOUR
    await client.schedules.backfill("s", since, UNTIL, limit_key="backfill")
    done = await client.schedules.backfill("s", since, UNTIL, limit_key="backfill")
    assert {one.state for one in done} == {"exists"}
    assert await keys_of(store) == {"k:backfill"}
    (first,) = await claimed(store)
    assert first in {one.task_id for one in done}
    more = await client.schedules.backfill("s", since - 3 * HOUR, since)
    states = {task.status for task in await store.list_tasks(SESSION)}
    assert states == {TaskStatus.PENDING}
    assert await keys_of(store) == {"k:backfill", f"1:{SESSION}"}
    (second,) = await claimed(store)
    assert second in {one.task_id for one in more}
    assert len((await client.find(attributes={"of": "s"})).tasks) == 6
    with pytest.raises(InvalidField) as wrong:
        await client.schedules.backfill("s", UNTIL - HOUR, UNTIL, limit_key="")
    assert wrong.value.field == "limit_key"


async def test_a_backfill_runs_one_at_a_time_the_oldest_first_if_it_is_to(
    store: RedisStateStore, client: TaskClient
) -> None:
    name = queue_of(store.settings)
    await client.schedules.save(hourly(in_turn=True, limit_key=None))
    since = UNTIL - 3 * HOUR
    await client.schedules.backfill("s", since, UNTIL, overlap="enqueue", dry_run=True)
    assert (await client.queues.get(name)).keys == {}
    later = await client.schedules.backfill("s", UNTIL - HOUR, UNTIL, overlap="enqueue")
    done = await client.schedules.backfill("s", since, UNTIL, overlap="enqueue")
    assert [one.state for one in done] == ["submitted", "submitted", "exists"]
    assert await keys_of(store) == {"b:s"}
    (listed,) = await client.queues.keys(name)
    assert (listed.limit_key, listed.in_turn, listed.waiting) == ("backfill:s", None, 3)
    # Nothing is left in the queue, and what others have set for keys is not for these.
    assert (await client.queues.get(name)).keys == {}
    await client.queues.limit(name, per_key=3)
    await client.queues.limit_key(name, "backfill:s", running=3)
    queue = Queue(store, name=name)
    await clock_passes(store.base.scripts, await clock_ms(store.base.scripts))
    ran: list[str] = []
    while (claimed_now := await queue.claim(name, limit=10)) != []:
        (job,) = claimed_now
        assert job.task is not None
        ran.append(job.task.task_id)
        await queue.end(name, [(job, None)])
    await queue.aclose()
    # In the order in which they were submitted, with those of another call.
    assert ran == [one.task_id for one in (*later, *done[:2])]
    for wrong_span, field in (((UNTIL, since), "until"), ((FIRST_DAY, UNTIL), "since")):
        with pytest.raises(InvalidField) as wrong:
            await client.schedules.backfill("s", *wrong_span)
        assert wrong.value.field == field
    for options in ({"overlap": "skip"}, {"overlap": "enqueue", "limit_key": "k"}):
        with pytest.raises(InvalidField) as wrong:
            await client.schedules.backfill("s", since, UNTIL, **options)  # type: ignore[arg-type]
        assert wrong.value.field in options


async def test_an_interrupted_backfill_that_is_repeated_queues_the_oldest_first(
    store: RedisStateStore, client: TaskClient, monkeypatch: Any
) -> None:
    await client.schedules.save(hourly())
    name, many = queue_of(store.settings), 4
    span = (UNTIL - many * HOUR, UNTIL)
    queue_job = Scripts.queue_job
    queued: list[int] = []

    async def interrupted(*arguments: Any, **options: Any) -> Reply:
        queued.append(1)
        if len(queued) == 2:
            raise asyncio.CancelledError
        return await queue_job(*arguments, **options)

    monkeypatch.setattr(Scripts, "queue_job", interrupted)
    with pytest.raises(asyncio.CancelledError):
        await client.schedules.backfill("s", *span, overlap="enqueue")
    queue = Queue(store, name=name)
    ran: list[str] = []

    async def run_next() -> None:
        await clock_passes(store.base.scripts, await clock_ms(store.base.scripts))
        for job in await queue.claim(name, limit=10):
            assert job.task is not None
            ran.append(job.task.task_id)
            await queue.end(name, [(job, None)])

    async def worked(*arguments: Any, **options: Any) -> Reply:
        # A worker takes what is there as soon as there is more.
        reply = await queue_job(*arguments, **options)
        await run_next()
        return reply

    monkeypatch.setattr(Scripts, "queue_job", worked)
    done = await client.schedules.backfill("s", *span, overlap="enqueue")
    assert [one.state for one in done] == ["exists"] * 2 + ["submitted"] * 2
    while len(ran) < many:
        before = len(ran)
        await run_next()
        assert len(ran) > before, "one was not queued"
    assert ran == [one.task_id for one in done]
    await queue.aclose()


@pytest.mark.parametrize("overlap", ["allow", "enqueue"])
async def test_a_backfill_whose_server_goes_away_says_whether_it_has_written(
    store: RedisStateStore, client: TaskClient, monkeypatch: Any, overlap: Any
) -> None:
    await client.schedules.save(hourly())
    look = type(store.tasks).look
    allowed = 0

    async def away(*arguments: Any) -> Any:
        nonlocal allowed
        allowed -= 1
        if allowed < 0:
            raise BackendUnavailable("server", "is away")
        return await look(*arguments)

    monkeypatch.setattr(type(store.tasks), "look", away)
    # It goes away before anything is written, and while the others of the first page are read.
    for looks, error in ((3, BackendUnavailable), (60, OutcomeUnknown)):
        allowed = looks
        with pytest.raises(BackendUnavailable) as failed:
            await client.schedules.backfill("s", UNTIL - 90 * HOUR, UNTIL, overlap=overlap)
        assert type(failed.value) is error
        assert (await tasks_there(store) > 0) is (error is OutcomeUnknown)


async def test_what_was_decided_is_submitted_as_it_was_though_the_schedule_has_another_key(
    store: RedisStateStore, client: TaskClient, runner: ScheduleRunner, monkeypatch: Any
) -> None:
    await client.schedules.save(hourly(limit_key="before", missed="all"))
    await settled_before(store)
    submit = runner._submitter.submit

    async def edited(*arguments: Any, **options: Any) -> list[bool]:
        await client.schedules.save(hourly(limit_key="after", missed="all"))
        return await submit(*arguments, **options)

    monkeypatch.setattr(runner._submitter, "submit", edited)
    await runner.run_once()
    assert await keys_of(store) == {"k:before"}


async def test_tasks_in_turn_that_are_there_cost_a_repetition_one_turn(
    store: RedisStateStore,
) -> None:
    # With long round trips they took all the time of a claim, so the last were never submitted.
    queue = Queue(store, name=queue_of(store.settings))
    submitter = Submitter(store, queue)
    job = hourly(in_turn=True).job()
    tasks = [PlannedTask(SESSION, f"at-{number}") for number in range(20)]
    assert await submitter.submit(tasks[:-1], job) == [True] * 19
    nodes, before = await primaries(store.transport), store.transport.sender.batches
    assert await submitter.submit(tasks, job) == [False] * 19 + [True]
    # One to find them, and some for the new one.
    assert store.transport.sender.batches - before <= 8 * nodes
    await queue.aclose()
