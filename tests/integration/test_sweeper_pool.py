"""Worker processes that are killed: what the others do about it, and how soon."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.gaps import send
from tests.integration.test_worker_pool import progress_of, stop, worker
from tests.looking import clock_ms
from tests.pools import SESSION, becomes, client_of, pool, queued, statuses, updates_of

pytestmark = pytest.mark.slow

LEASE_S = 1.0
# What a dead worker leaves is to be with another by then; arq itself waits 310 s or more.
BOUND_MS = (LEASE_S + 2) * 1000


async def run_began_ms(store: RedisStateStore, task: str, run: int) -> int:
    """Wait until a task runs for the n-th time; tell when that was, by the server's clock."""

    async def found() -> int | None:
        page = await store.read_updates(SESSION, task_id=task)
        began = [
            int(entry.cursor.split("-")[1])
            for entry in page.entries
            if entry.value.content == {"status": "RUNNING", "worker": entry.value.content["worker"]}
        ]
        return began[run - 1] if len(began) >= run else None

    began = await eventually(found, f"run {run} of {task} begins", timeout_s=30)
    assert began is not None
    return began


async def test_a_task_of_a_killed_process_is_soon_with_another(
    store: RedisStateStore, settings: Settings, record_property: pytest.RecordProperty
) -> None:
    async with client_of(store) as client, AsyncExitStack() as running:
        one = await running.enter_async_context(worker(settings, "one", lease_s=LEASE_S))
        task = await client.submit("linger", session_id=SESSION)
        await eventually(lambda: progress_of(store, task), "it runs")
        await running.enter_async_context(worker(settings, "two", lease_s=LEASE_S))
        await two_is_there(client)
        killed_ms = await clock_ms(store.base.scripts)
        assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        taken_ms = await run_began_ms(store, task, 2) - killed_ms
        record_property("takeover, in leases", taken_ms / 1000 / LEASE_S)
        # The lease itself had to run out; a busy machine may double the rest.
        assert LEASE_S / 2 < taken_ms / 1000
        assert taken_ms / BOUND_MS < 2
        ended = await client.wait(SESSION, task, timeout_s=20)
        assert ended.result == "two"
        assert await statuses(store, task) == ["PENDING", "RUNNING", "RUNNING", "COMPLETE"]
