"""A job that waits is at the place of its record's priority, whoever changes that, or dies then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import SteeringEventType
from redis_state.worker import TaskClient
from redis_state.worker.queue.jobs.job import Job, QueueState
from redis_state.worker.queue.jobs.placing import place_by_record
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.permits import queue_again
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.processes.deaths.die_prioritizing import PHASES
from tests.support.processes.pools import SESSION, client_of, key_of_queue, queue_of
from tests.support.servers.faults import run_processes
from tests.support.tasks.crash_states import entry_in_ms, make_due, sweeper_of

MINUTE = 60_000
PRIORITIZE = SteeringEventType.PRIORITIZE


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncGenerator[TaskClient, None]:
    async with client_of(store) as client:
        yield client


class _StoppedQueue(Queue):
    """A queue whose caller is stopped once, before a job is moved or behind that."""

    def __init__(self, store: RedisStateStore, where: str) -> None:
        super().__init__(store, name=queue_of(store.settings))
        self.where = where
        self.meanwhile: list[Callable[[], Awaitable[object]]] = []

    async def move(self, job: Job) -> None:
        do = [self.meanwhile.pop()] if self.meanwhile else []
        for each in do if self.where == "before" else ():
            await each()
        await super().move(job)
        for each in do if self.where == "behind" else ():
            await each()


async def submitted(client: TaskClient, **options: Any) -> str:
    return await client.submit("work", session_id=SESSION, task_id="t", **options)


async def place(store: RedisStateStore) -> float:
    """Return where the only job is."""
    _, found = await store.transport.commands.zrange_scored(key_of_queue(store.settings), 0, -1)
    return float(found)


async def moved(store: RedisStateStore, before: float) -> int:
    """Return by how many points a job is earlier than it was."""
    return round((before - await place(store)) / MINUTE)


async def prioritize(client: TaskClient, priority: int) -> None:
    await client.steer(SESSION, "t", PRIORITIZE, {"priority": priority})


# A death after one round trip leaves what a death before the next one does.
@pytest.mark.role("any", why="each death has a namespace of its own")
@pytest.mark.parametrize(
    "edges", [["before"], pytest.param(["before", "after"], marks=pytest.mark.full)]
)
async def test_a_death_at_any_round_trip_leaves_a_place_that_a_repetition_or_a_sweep_makes_right(
    settings: Settings, edges: list[str]
) -> None:
    argument = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    dying = [argument | {"edge": edge} for edge in edges]
    for results in await run_processes("die_prioritizing", dying, timeout_s=300):
        assert {each["phase"] for each in results} == set(PHASES)
        assert {"prioritize_task", "move_job"} <= {each["trip"] for each in results}
        assert not [each for each in results if each["problems"]]


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("last", [9, 2])
async def test_the_last_priority_of_the_record_wins_in_whatever_order_its_callers_move_the_job(
    store: RedisStateStore, client: TaskClient, where: str, last: int
) -> None:
    await submitted(client)
    before = await place(store)
    waiting = await TaskChanges(store).prioritize(SESSION, "t", 5)
    assert waiting is not None
    stopped = _StoppedQueue(store, where)
    stopped.meanwhile = [lambda: prioritize(client, last)]
    await place_by_record(store, stopped, waiting)
    assert not stopped.meanwhile
    assert await moved(store, before) == last


async def test_of_many_callers_at_once_the_last_priority_of_the_record_wins(
    store: RedisStateStore, client: TaskClient
) -> None:
    await submitted(client, priority=3)
    before = await place(store)
    await asyncio.gather(*(prioritize(client, priority) for priority in range(20)))
    state = await client.get(SESSION, "t")
    assert state is not None
    assert await moved(store, before) == state.priority - 3


async def test_a_sweeper_that_has_read_the_record_before_a_change_does_not_undo_it(
    store: RedisStateStore, client: TaskClient
) -> None:
    await submitted(client)
    before, read = await place(store), await store.tasks.look(SESSION, "t")
    assert read is not None
    await prioritize(client, 4)
    queue = Queue(store, name=queue_of(store.settings))
    found = await queue_again(store, TaskTransitions(store), queue, [read], patience_ms=100)
    assert found == [QueueState.MISPLACED]
    assert await moved(store, before) == 4


@pytest.mark.parametrize("limit_key", [None, "k"])
async def test_a_sweeper_places_a_job_by_its_record_soon(
    store: RedisStateStore, client: TaskClient, limit_key: str | None
) -> None:
    await submitted(client, limit_key=limit_key)
    await submitted_beside(client, limit_key)
    assert await TaskChanges(store).prioritize(SESSION, "t", 4) is not None
    # Who changed it has died here.
    in_ms = await entry_in_ms(store, watch_entry(SESSION, "t"))
    assert in_ms is not None
    assert in_ms <= 2_000
    queue = Queue(store, name=queue_of(store.settings))
    await make_due(store, watch_entry(SESSION, "t"))
    await sweeper_of(store).run_once()
    claimed = [job.task for job in await queue.claim(queue.name, limit=100)]
    assert [task.task_id for task in claimed if task is not None] == ["t", "before"]


async def submitted_beside(client: TaskClient, limit_key: str | None) -> None:
    await client.submit(
        "work", session_id=SESSION, task_id="before", priority=2, limit_key=limit_key
    )


async def test_a_task_that_is_put_off_after_a_run_is_not_due_any_earlier_for_its_priority(
    store: RedisStateStore, client: TaskClient
) -> None:
    await submitted(client)
    before = await place(store)
    queue = Queue(store, name=queue_of(store.settings))
    (job,) = await queue.claim(queue.name, limit=1)
    await queue.end(queue.name, [(job, 3_600_000)])
    put_off = await place(store)
    assert put_off - before > 3_500_000
    await prioritize(client, 100)
    assert await place(store) == put_off
