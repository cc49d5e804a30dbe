"""Queues that are paused or given other limits while workers are killed; who runs what is seen."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.chaos.support.crew import trails
from tests.support.processes.pools import SESSION, becomes, client_of, queue_of
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.scripts.replies import clock_ms

pytestmark = pytest.mark.worker

_OPTIONS: dict[str, Any] = {"lease_s": 0.5, "interval_s": 0.2, "max_tasks": 2}


async def run_by(client: TaskClient, worker: str, *tasks: str) -> None:
    """Wait until a worker is listed with exactly these."""

    async def so() -> bool:
        named = {info.name: info for info in await client.workers()}
        return worker in named and set(named[worker].running) == {(SESSION, t) for t in tasks}

    await eventually(so, f"{worker} runs {len(tasks)}", timeout_s=60)


async def test_what_a_dead_worker_ran_waits_until_its_paused_queue_is_resumed(
    store: RedisStateStore,
) -> None:
    name, clock = queue_of(store.settings), store.base.scripts
    async with client_of(store) as client:
        async with worker_process(store.settings, "one", **_OPTIONS) as one:
            # Those of one millisecond are in the order of their ids.
            tasks = [
                await client.submit("linger", session_id=SESSION, task_id=f"t{number}")
                for number in range(3)
            ]
            for task in tasks[:2]:
                await becomes(client, task, TaskStatus.RUNNING)
            await run_by(client, "one", *tasks[:2])
            await client.queues.pause(name)
            paused_ms = await clock_ms(clock)
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
            assert (await client.queues.get(name)).running == 2

        async with worker_process(store.settings, "two", **_OPTIONS):

            async def all_wait() -> bool:
                queue = await client.queues.get(name)
                return (queue.waiting, queue.running, queue.paused) == (3, 0, True)

            await eventually(all_wait, "the dead worker's tasks wait too", timeout_s=60)
            waited_ms = await clock_ms(clock)

            async def has_asked() -> bool:
                asked = [info.last_poll_ms for info in await client.workers() if info.name == "two"]
                return bool(asked) and (asked[0] or 0) > waited_ms

            await eventually(has_asked, "the worker has asked for them", timeout_s=60)
            await run_by(client, "two")
            assert (await client.queues.get(name)).oldest_s * 1000 >= waited_ms - paused_ms
            resumed_ms = await clock_ms(clock)
            await client.queues.resume(name)
            # In a later run each ends at once.
            for task in tasks[:2]:
                assert await client.result(SESSION, task, timeout_s=60) == "two"
            await run_by(client, "two", tasks[2])
            assert (await client.queues.get(name)).running == 1
            await client.cancel(SESSION, tasks[2], hard=True)
            await becomes(client, tasks[2], TaskStatus.CANCELLED)
            await run_by(client, "two")
    begun = {
        task: [row.at_ms for row in trail if row.status == "RUNNING"]
        for task, trail in (await trails(store)).items()
    }
    assert [len(begun[task]) for task in tasks] == [2, 2, 1]
    assert not [at for each in begun.values() for at in each if paused_ms < at < resumed_ms]


async def test_a_limit_that_is_lowered_holds_for_what_comes_back_from_a_dead_worker(
    store: RedisStateStore,
) -> None:
    name = queue_of(store.settings)
    options = _OPTIONS | {"max_tasks": 10}
    async with client_of(store) as client:
        await client.queues.limit(name, running=4)
        await client.queues.limit_key(name, "b", running=2)
        async with worker_process(store.settings, "one", **options) as one:
            tasks = {
                await client.submit("linger", session_id=SESSION, limit_key=key): key
                for key in "abab"
            }
            for task in tasks:
                await becomes(client, task, TaskStatus.RUNNING)
            await client.queues.limit(name, running=3)
            await client.queues.limit_key(name, "b", running=1)
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
            # The dead worker's permits are held, and a lower limit takes none away.
            assert (await client.queues.get(name)).running == 4
        async with worker_process(store.settings, "two", **options):
            for task in tasks:
                assert await client.result(SESSION, task, timeout_s=60) == "two"

            async def none_held() -> bool:
                return not (await client.queues.get(name)).running

            await eventually(none_held, "no permit is held", timeout_s=60)
            view = await client.queues.get(name)
            assert (view.limit, view.keys["b"].running) == (3, 1)
    # By the moves in the order of the log: `two` never had more than the new limits allow.
    now, most = set[str](), Counter[str]()
    for update in await store.list_updates(SESSION):
        if update.update_type.value != "STATUS_CHANGE":
            continue
        if update.content["status"] == "RUNNING" and update.content["worker"] == "two":
            now.add(update.task_id)
        else:
            now.discard(update.task_id)
        most["all"] = max(most["all"], len(now))
        most["b"] = max(most["b"], sum(tasks[task] == "b" for task in now))
    assert 0 < most["all"] <= 3
    assert most["b"] == 1
