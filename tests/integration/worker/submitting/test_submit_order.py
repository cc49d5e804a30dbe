"""A submit's three calls, the entry, the task and the job: a fault at each, and what is left.

A task without an entry would be lost with its job, and a job without a task would ask for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Literal

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import OutcomeUnknown, StoreFull
from redis_state.models import TaskStatus
from redis_state.worker import TaskClient
from tests.support.processes.pools import SESSION, client_of, pool, queued, statuses, watched
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy, Fault
from tests.support.tasks.handlers import answer

pytestmark = pytest.mark.worker

CALLS = ("index_task", "create_task", "queue_job")
# What is there before each of them: entries of the watch list, tasks, jobs.
BEFORE = {"index_task": (0, 0, 0), "create_task": (1, 0, 0), "queue_job": (1, 1, 0)}
ALL = (1, 1, 1)


@pytest.fixture
async def proxy(store: RedisStateStore) -> AsyncIterator[CommandProxy]:
    async with CommandProxy(store.settings.url.get_secret_value()) as proxy:
        yield proxy


@pytest.fixture
async def far(store: RedisStateStore, proxy: CommandProxy) -> AsyncIterator[TaskClient]:
    """Give a client whose calls pass the proxy."""
    async with changed(store.settings, url=proxy.url) as behind, client_of(behind) as far:
        yield far


async def there(store: RedisStateStore) -> tuple[int, int, int]:
    tasks = await store.list_tasks(SESSION)
    return await watched(store), len(tasks), len(await queued(store))


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_finds_done_what_stands_before_it(
    store: RedisStateStore, proxy: CommandProxy, far: TaskClient, name: str
) -> None:
    found: list[tuple[int, int, int]] = []

    async def look() -> None:
        found.append(await there(store))

    with proxy.meanwhile(name, look):
        await far.submit("answer", session_id=SESSION, task_id="t")
    assert found == [BEFORE[name]]
    assert await there(store) == ALL


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", ["before", "after"])
async def test_a_connection_that_breaks_at_a_call_leaves_one_task_and_its_job(
    store: RedisStateStore,
    proxy: CommandProxy,
    far: TaskClient,
    name: str,
    place: Literal["before", "after"],
) -> None:
    fault: AbstractContextManager[Fault]
    fault = proxy.cut_before(name) if place == "before" else proxy.cut_after(name)
    with fault:
        await far.submit("answer", session_id=SESSION, task_id="t")
    assert await there(store) == ALL
    assert await statuses(store, "t") == [TaskStatus.PENDING]
    async with pool(store, {"answer": answer}) as client:
        assert await client.result(SESSION, "t", timeout_s=60) == 42


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_refused_is_the_last_one(
    store: RedisStateStore, proxy: CommandProxy, far: TaskClient, name: str
) -> None:
    # Behind the task's write its caller learns that it may be written.
    wanted = OutcomeUnknown if name == "queue_job" else StoreFull
    with proxy.answer(name, OOM), pytest.raises(wanted):
        await far.submit("answer", session_id=SESSION, task_id="t")
    assert await there(store) == BEFORE[name]
    # Submitted again it is as if nothing had been.
    await far.submit("answer", session_id=SESSION, task_id="t")
    assert await there(store) == ALL
