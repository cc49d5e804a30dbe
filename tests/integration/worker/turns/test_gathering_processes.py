"""Many processes add items at once and are killed: each item is in one batch, once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import TaskInProgress
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.histories import read_history
from tests.processes.deaths.die_gathering import PHASES
from tests.support.processes import children
from tests.support.processes.pools import SESSION, becomes, client_of, pool, queue_of
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.servers.faults import run_processes, start_process
from tests.support.servers.sets.clusters import running_cluster

pytestmark = pytest.mark.slow

_PROCESSES, _ITEMS, _MOST = 8, 40, 7


async def test_items_of_processes_that_are_killed_are_in_one_batch_each(
    store: RedisStateStore,
) -> None:
    settings, chance = store.settings, random.Random(20)
    begun: list[list[str]] = []

    async def work(ctx: TaskContext) -> None:
        begun.append(ctx.input)

    arguments: list[dict[str, Any]] = [
        {
            "url": settings.url.get_secret_value(),
            "namespace": settings.namespace,
            "queue": queue_of(settings),
            "name": f"p{number}",
            "items": _ITEMS,
            "most": _MOST,
            # So short that starts close batches too, and not only their size.
            "after_ms": 5,
        }
        for number in range(_PROCESSES)
    ]

    async def killed(argument: dict[str, Any]) -> None:
        """Kill the process once it has added some of its items."""
        process = await start_process("gather_items", argument)
        for _ in range(chance.randint(1, _ITEMS - 1)):
            assert process.stdout is not None
            await process.stdout.readline()
        process.kill()
        await children.end(process)

    async with pool(store, {"work": work}, max_tasks=4) as client:
        await asyncio.gather(*map(killed, arguments))
        # Their callers repeat all of it.
        placed = {
            item: task
            for each in await run_processes("gather_items", arguments)
            for item, task in each.items()
        }
        for task in set(placed.values()):
            await client.wait(SESSION, task, timeout_s=60)

        async def all_ended() -> bool:
            return all(task.status.is_terminal for task in await store.list_tasks(SESSION))

        await eventually(all_ended, "all batches have run")
    names = [f"p{number}-{item}" for number in range(_PROCESSES) for item in range(_ITEMS)]
    assert Counter(item for batch in begun for item in batch) == Counter(names)
    assert max(map(len, begun)) <= _MOST
    for task in set(placed.values()):
        history = await read_history(store, SESSION, task)
        assert history is not None
        assert sorted(history.input) == sorted(name for name in names if placed[name] == task)
        # The items of one process are in its order.
        for number in range(_PROCESSES):
            own = [
                int(name.split("-")[1]) for name in history.input if name.startswith(f"p{number}-")
            ]
            assert own == sorted(own)


async def test_a_batch_is_closed_by_a_start_whose_worker_is_killed(
    store: RedisStateStore, settings: Settings
) -> None:
    options: dict[str, Any] = {"session_id": SESSION, "after": timedelta(hours=1), "most": 2}
    async with client_of(store) as client:
        async with worker_process(settings, "one", lease_s=0.5) as one:
            task = await client.batch("linger", 1, item_id="1", **options)
            await client.batch("linger", 2, item_id="2", **options)
            await becomes(client, task, TaskStatus.RUNNING)
            assert await client.batch("linger", 3, item_id="3", **options) != task
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        assert await client.batch("linger", 2, item_id="2", **options) == task
        async with worker_process(settings, "two", lease_s=0.5):
            assert await client.result(SESSION, task, timeout_s=60) == "two"
    history = await read_history(store, SESSION, task)
    assert history is not None
    assert (history.input, history.attempts) == ([1, 2], 2)


async def test_a_burst_that_has_begun_keeps_its_input_though_its_worker_is_killed(
    store: RedisStateStore, settings: Settings
) -> None:
    options: dict[str, Any] = {"session_id": SESSION, "wait": timedelta(milliseconds=1)}
    name = queue_of(settings)
    async with client_of(store) as client:
        async with worker_process(settings, "one", lease_s=0.5) as one:
            # What is due has not begun while its queue is paused.
            await client.queues.pause(name)
            tasks = [await client.debounce("linger", word, **options) for word in ("draft", "last")]
            assert len(set(tasks)) == 1
            await client.queues.resume(name)
            await becomes(client, tasks[0], TaskStatus.RUNNING)
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        later = await client.debounce("linger", "next", **options)
        assert later != tasks[0]
        async with worker_process(settings, "two", lease_s=0.5):
            assert await client.result(SESSION, tasks[0], timeout_s=60) == "two"
            await becomes(client, later, TaskStatus.RUNNING)
            await client.cancel(SESSION, later, hard=True)
            await client.wait(SESSION, later, timeout_s=60)
    found = [await read_history(store, SESSION, task) for task in (tasks[0], later)]
    assert [(each.input, each.attempts) for each in found if each] == [("last", 2), ("next", 1)]


# A death after one round trip leaves what a death before the next one does.
@pytest.mark.parametrize(
    ("edges", "stride"),
    [(["before"], 3), pytest.param(["before", "after"], 1, marks=pytest.mark.full)],
)
async def test_a_death_at_any_round_trip_loses_no_item_and_doubles_none(
    settings: Settings, edges: list[str], stride: int
) -> None:
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "stride": stride,
    }
    dying = [argument | {"edge": edge} for edge in edges]
    for results in await run_processes("die_gathering", dying, timeout_s=300):
        assert {each["phase"] for each in results} == set(PHASES)
        if stride == 1:
            trips = {each["trip"] for each in results}
            assert {"index_task", "open_gathering", "add_item", "queue_job", "defer_job"} <= trips
        assert not [each for each in results if each["problems"]]


async def test_on_a_cluster_sessions_have_slots_of_their_own_and_the_queue_another() -> None:
    begun: Counter[str] = Counter()

    async def work(ctx: TaskContext) -> Any:
        begun[ctx.task.session_id] += 1
        return ctx.input

    async def ask(ctx: TaskContext) -> None:
        await ctx.approval("go on?")

    async with (
        running_cluster() as cluster,
        RedisStateStore(Settings(url=SecretStr(cluster.url), namespace="spread")) as store,
        pool(store, {"work": work, "ask": ask}, max_tasks=8) as client,
    ):
        sessions = [f"{{busy}}-{number}" for number in range(6)]
        for session in sessions:
            await client.submit("ask", session_id=session, task_id="a", in_turn=True)

            async def paused(session: str = session) -> bool:
                state = await client.get(session, "a")
                return state is not None and state.status is TaskStatus.PAUSED

            await eventually(paused, "it is paused")
            with pytest.raises(TaskInProgress):
                await client.submit("work", session_id=session, on_busy="reject")
            await client.submit("work", session_id=session, task_id="b", on_busy="interrupt")
            assert (await client.wait(session, "a", timeout_s=60)).status is TaskStatus.CANCELLED
            await client.wait(session, "b", timeout_s=60)
            late = timedelta(hours=1)
            for name in ("c", "d"):
                await client.submit(
                    "work", session_id=session, task_id=name, on_busy="replace", delay=late
                )
            state = await client.get(session, "c")
            assert state is not None
            assert state.error == "replaced by task 'd'"
            soon = timedelta(milliseconds=200)
            tasks = [
                await client.batch("work", n, session_id=session, after=soon, most=2)
                for n in range(3)
            ]
            assert await client.result(session, tasks[0], timeout_s=60) == [0, 1]
            assert await client.result(session, tasks[2], timeout_s=60) == [2]
            last = [await client.debounce("work", n, session_id=session, wait=soon) for n in "ab"]
            assert await client.result(session, last[1], timeout_s=60) == "b"
    assert set(begun) == set(sessions)
