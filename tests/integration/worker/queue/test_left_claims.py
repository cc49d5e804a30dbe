"""A worker that dies between a task's end or pause and its job's end leaves a claim."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.support.processes.pools import SESSION, becomes, client_of, queue_of
from tests.support.processes.worker_processes import worker_process

pytestmark = pytest.mark.worker


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(
    ("handler", "status"), [("ask", TaskStatus.PAUSED), ("fresh", TaskStatus.COMPLETE)]
)
async def test_the_permit_of_a_task_that_paused_or_ended_as_its_worker_died_is_free_again(
    store: RedisStateStore, tmp_path: Path, handler: str, status: TaskStatus, key: str | None
) -> None:
    name = queue_of(store.settings)
    options: dict[str, Any] = {
        "program": "versioned_worker",
        "versions": ["1"],
        "fresh": True,
        "lease_s": 0.5,
    }
    dies = options | {"die": ["before", "end_jobs", str(tmp_path / "killed")]}
    async with client_of(store) as client:
        await client.queues.limit(name, running=1)
        async with worker_process(store.settings, "one", **dies) as one:
            first = await client.submit(handler, session_id=SESSION, limit_key=key)
            assert await one.wait() == -signal.SIGKILL
            await becomes(client, first, status)
        assert (await client.queues.get(name)).running == 1
        async with worker_process(store.settings, "two", **options):
            # It would wait for the permit.
            second = await client.submit("fresh", session_id=SESSION, limit_key=key)
            assert await client.result(SESSION, second, timeout_s=20) == "two"

            async def none_runs() -> bool:
                return (await client.queues.get(name)).running == 0

            await eventually(none_runs, "no permit is held")
        await becomes(client, first, status)
