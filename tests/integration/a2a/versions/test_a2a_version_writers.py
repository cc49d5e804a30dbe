"""Many writers of the A2A SDK's versioned tasks: one winner, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.server.cluster import (
    StoredTask,
)

from redis_state import Settings
from redis_state.integrations.a2a import (
    create_event_stream,
    create_versioned_task_store,
)
from redis_state.integrations.a2a.versioned import (
    RedisTaskEventStream,
    RedisVersionedTaskStore,
)
from redis_state.testing import eventually
from tests.support.a2a.tasks import (
    CANCELED,
    COMPLETED,
    server_on,
    task,
)
from tests.support.a2a.versions import ME, hear, names, read, save
from tests.support.servers.faults import Proxy, begin_processes, run_processes
from tests.support.sizes import sizes


async def test_a_repeated_write_is_one(settings: Settings) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        server_on(settings, url=proxy.url) as far,
        server_on(settings) as near,
    ):
        tasks = create_versioned_task_store(far)
        first = await save(tasks, task())
        proxy.silence()
        saving = asyncio.create_task(save(tasks, task(text="2"), first))

        async def written() -> bool:
            return (await read(create_versioned_task_store(near))).version != first

        await eventually(written, "the write has arrived")
        await eventually(lambda: proxy.swallowed > 0, "its reply is lost")
        proxy.silence(silent=False)
        proxy.cut()
        # The reply was lost and the call repeated: it is told of what it wrote itself.
        second = await saving
        assert await read(tasks) == StoredTask(task(text="2"), second)
        await save(tasks, task(state=COMPLETED), second)
        stream = create_event_stream(near)
        assert len(await hear(stream, stream.version_at("t", ME))) == 3


@pytest.mark.parametrize("count", sizes(3, 5))
async def test_writers_in_many_processes_lose_nothing(settings: Settings, count: int) -> None:
    times = 30
    common = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    writers = [{"does": "write", "who": who, "times": times, **common} for who in range(count)]
    readers = [{"does": "follow", **common} for _ in range(2)]
    running = await begin_processes("write_a2a_versions", writers + readers)
    async with server_on(settings) as backend:
        tasks, stream = create_versioned_task_store(backend), create_event_stream(backend)

        async def all_written() -> bool:
            found = await tasks.get("t", ME)
            return found is not None and len(found.task.artifacts) == count * times

        await eventually(all_written, "all is written", timeout_s=60)
        found = await read(tasks)
        ended = task(state=COMPLETED)
        ended.artifacts.extend(found.task.artifacts)
        await save(tasks, ended, found.version)
        results = await running
        log = await hear(stream, stream.version_at("t", ME))
    order = names(log)[:-1]
    # The task, the log, and what each process was told agree on one order.
    assert [artifact.artifact_id for artifact in found.task.artifacts] == order
    reported = [row for result in results[:count] for row in result]
    assert sorted(order) == sorted(name for name, _, _ in reported)
    assert len({version for _, version, _ in reported}) == count * times
    assert all(after for _, _, after in reported)
    for who in range(count):
        own = [name for name in order if name.startswith(f"{who}-")]
        assert own == [f"{who}-{n}" for n in range(times)]
    for heard in results[count:]:
        assert heard[:-1] == order


async def test_one_of_many_ends_wins(
    settings: Settings, tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    races = [f"t{n}" for n in range(60)]
    for name in races:
        await save(tasks, task(name))
    common = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    won = await run_processes(
        "write_a2a_versions",
        [{"does": "end", "who": who, "tasks": races, **common} for who in range(4)],
    )
    assert sorted(name for ended in won for name in ended) == sorted(races)
    for who, ended in enumerate(won):
        for name in ended:
            state = CANCELED if who % 2 else COMPLETED
            assert (await read(tasks, name)).task.status.state == state
            assert len(await hear(stream, stream.version_at(name, ME), name)) == 2
