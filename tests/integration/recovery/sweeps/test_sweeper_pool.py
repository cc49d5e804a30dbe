"""Worker processes that are killed: what the others do about it, and how soon that is due."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from tests.integration.worker.processes.test_worker_pool import progress_of, stop, worker
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    pool,
    queued,
    statuses,
)
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.crash_states import claims_of, entry_in_ms, send

pytestmark = pytest.mark.slow

LEASE_S = 1.0
# What a dead worker leaves is looked at by then; arq itself waits 310 s or more.
BOUND_MS = (LEASE_S + 2) * 1000


async def is_due_in_time(store: RedisStateStore, task: str) -> bool:
    """Tell whether the watch list has a task looked at soon. Who looks, and when, is another's."""
    in_ms = await entry_in_ms(store, watch_entry(SESSION, task))
    return in_ms is not None and in_ms <= BOUND_MS


async def run_began_ms(store: RedisStateStore, task: str, run: int) -> int:
    """Wait until a task runs for the n-th time; tell when that was, by the server's clock."""

    async def found() -> int | None:
        page = await store.read_updates(SESSION, task_id=task)
        reported = [
            one for one in page.entries if one.value.update_type is UpdateType.STATUS_CHANGE
        ]
        began = [
            int(entry.cursor.split("-")[1])
            for entry in reported
            if entry.value.content["status"] == "RUNNING"
        ]
        return began[run - 1] if len(began) >= run else None

    began = await eventually(found, f"run {run} of {task} begins", timeout_s=30)
    assert began is not None
    return began


async def is_there(client: TaskClient, name: str) -> None:
    """Wait until a worker takes tasks."""

    async def answers() -> bool:
        task = await client.submit("who", session_id=SESSION)
        return (await client.wait(SESSION, task, timeout_s=30)).result == name

    await eventually(answers, f"{name} is there", timeout_s=60)


async def test_a_task_of_a_killed_process_is_soon_with_another(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        one = await running.enter_async_context(worker(settings, "one", lease_s=LEASE_S))
        task = await client.submit("linger", session_id=SESSION)
        await eventually(lambda: progress_of(store, task), "it runs")
        await running.enter_async_context(worker(settings, "two", lease_s=LEASE_S))
        await is_there(client, "two")
        killed_ms = await clock_ms(store.base.scripts)
        assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        assert await is_due_in_time(store, task)
        # The lease itself had to run out.
        taken_ms = await run_began_ms(store, task, 2) - killed_ms
        assert taken_ms / 1000 > LEASE_S / 2
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == "two"
        assert await statuses(store, task) == ["PENDING", "RUNNING", "RUNNING", "COMPLETE"]


async def test_a_task_that_a_killed_process_had_picked_and_not_started_is_soon_with_another(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client:
        async with worker(settings, "one", lease_s=LEASE_S, dies_before_start=True) as one:
            task = await client.submit("who", session_id=SESSION)
            async with asyncio.timeout(60):
                assert await one.wait() == -signal.SIGKILL
        # It died in between: the job is claimed, and the task waits.
        assert await send(store, "ZCARD", claims_of(store)) == 1
        assert await queued(store) == []
        await becomes(client, task, TaskStatus.PENDING)

        async def who(ctx: TaskContext) -> str:
            return ctx.worker

        async with pool(store, {"who": who}, name="two", lease_s=LEASE_S):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == "two"


async def test_a_task_that_kills_its_workers_is_given_up_and_the_pool_lives_on(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        workers = [
            await running.enter_async_context(worker(settings, f"w{number}", lease_s=LEASE_S))
            for number in range(5)
        ]
        task = await client.submit("poison", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        assert ended.error == "given up: 4 workers in a row died, or stalled, while they ran it"
        assert [dead.task_id for dead in await client.dead()] == [task]
        codes = sorted(str(process.returncode) for process in workers)
        assert codes == ["-9"] * 4 + ["None"]
        other = await client.submit("who", session_id=SESSION)
        assert (await client.wait(SESSION, other, timeout_s=60)).status is TaskStatus.COMPLETE
