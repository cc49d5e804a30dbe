"""A queue without a live worker is seen: in listings, by the command line, and in metrics."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("prometheus_client", reason="needs the prometheus extra")

from prometheus_client import CollectorRegistry

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient
from redis_state.worker.queue import counting, names
from redis_state.worker.queue.backlog import Backlog
from redis_state.worker.queue.control import read_backlogs
from redis_state.worker.queue.queue import Queue
from tests.support.commands import cli
from tests.support.processes.pools import SESSION, client_of, pool, serving
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.tasks.work import Work

pytestmark = pytest.mark.worker


async def listed(client: TaskClient) -> dict[str, tuple[int, int, int]]:
    """Return what waits in each queue that is listed, what runs, and its workers."""
    return {
        info.name: (info.waiting, info.running, info.workers) for info in await client.queues.list()
    }


async def test_a_queue_whose_only_worker_was_killed_is_seen_until_it_is_empty(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("typer", reason="needs the cli extra")
    monkeypatch.setattr(counting, "_COUNT_EVERY_S", 0.05)
    gpu, registry = f"gpu-{settings.namespace}", CollectorRegistry()

    def metric(name: str) -> float | None:
        return registry.get_sample_value(f"redis_state_{name}", {"worker": "w", "queue": gpu})

    async with client_of(store) as client:
        async with worker_process(
            settings, "one", queues=[gpu], lease_s=1.0, interval_s=0.1
        ) as one:
            task = await client.submit("linger", session_id=SESSION, queue=gpu)

            async def runs() -> bool:
                state = await client.get(SESSION, task)
                return state is not None and state.status is TaskStatus.RUNNING

            await eventually(runs, "it runs")
            assert (await listed(client))[gpu][2] == 1
            assert await stop(one, signal.SIGKILL) == -signal.SIGKILL
        waiting = await client.submit("linger", session_id=SESSION, queue=gpu)
        await client.submit("linger", session_id=SESSION, queue=gpu, delay=timedelta(hours=1))

        async def silent() -> bool:
            return (await listed(client))[gpu][2] == 0

        async with pool(store, {"h": Work()}, name="w", metrics_registry=registry):
            await eventually(silent, "the dead worker's record has expired")
            await eventually(lambda: metric("queue_waiting"), "the backlog is counted")
            assert metric("queue_later") == 1
            await eventually(lambda: metric("queue_workers") == 0, "the next round counts it")
            ran = await cli(settings, "queues", "--json")
            (seen,) = [each for each in ran.document if each["name"] == gpu]
            assert (seen["waiting"] >= 1, seen["later"], seen["workers"]) == (True, 1, 0)
            for state in await store.list_tasks(SESSION):
                await client.cancel(SESSION, state.task_id, hard=True)
            await client.wait(SESSION, waiting)


async def test_a_queue_of_workers_without_metrics_is_served(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_COUNT_EVERY_S", 0.05)
    registry, gpu = CollectorRegistry(), "gpu"

    def metric() -> float | None:
        return registry.get_sample_value("redis_state_queue_workers", {"worker": "w", "queue": gpu})

    async with (
        serving(AgentWorker({"h": Work()}, settings=settings, queue=gpu)),
        pool(store, {"h": Work()}, name="w", metrics_registry=registry),
        client_of(store) as client,
    ):
        await client.submit("h", session_id=SESSION, queue=gpu, delay=timedelta(hours=1))
        await eventually(lambda: metric() == 1, "the other worker is counted")


async def test_a_queue_is_listed_while_it_has_tasks(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        task = await client.submit("h", session_id=SESSION, queue="wrnog")
        assert (await listed(client))["wrnog"] == (1, 0, 0)
        await client.cancel(SESSION, task)
        other = Queue(store, name="wrnog")
        assert "wrnog" in await other.names.list()
        await other.clear()
        await other.aclose()
        assert "wrnog" not in await listed(client)


async def test_more_names_than_a_page_holds_are_all_listed(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_PAGE", 10)
    queue = Queue(store)
    expected = {f"q{n:04}" for n in range(1_100)}
    await asyncio.gather(*map(queue.names.know, expected))
    found = await queue.names.list()
    await queue.aclose()
    assert found == expected


async def test_ages_are_read_only_of_the_queues_that_are_kept_and_few_at_once(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[str | None, bool]] = []
    now: list[int] = [0, 0]
    backlog = Queue.backlog

    async def counted(self: Queue, queue: str | None = None, *, ages: bool = True) -> Backlog:
        reads.append((queue, ages))
        now[0] += 1
        now[1] = max(now)
        found = await backlog(self, queue, ages=ages)
        now[0] -= 1
        return found

    monkeypatch.setattr(Queue, "backlog", counted)
    async with client_of(store) as client:
        for n in range(20):
            await client.submit("h", session_id=SESSION, queue=f"q{n}")
        await client.submit("h", session_id=SESSION, queue="q7")
        await client.submit("h", session_id=SESSION, queue="later", delay=timedelta(days=30))
    other = Queue(store, name="mine")
    found = await read_backlogs(other, ["mine"], most=1)
    await other.aclose()
    assert sorted(found) == ["mine", "q7"]
    assert (found["q7"].waiting, found["q7"].oldest_s > 0) == (2, True)
    assert [name for name, ages in reads if ages] == ["q7"]
    assert len(reads) == 23
    assert now[1] == 16
