"""Events of the A2A SDK's versioned tasks: all from any version on, or of the gap."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.server.cluster import (
    ConcurrentTaskModificationError,
    TaskVersion,
    VersionedEvent,
)
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError

from redis_state import Settings
from redis_state.integrations.a2a import (
    create_event_stream,
    create_versioned_task_store,
)
from redis_state.integrations.a2a.versioned import (
    RedisTaskEventStream,
    RedisTaskVersion,
    RedisVersionedTaskStore,
)
from redis_state.testing import eventually
from tests.support.a2a.tasks import (
    CANCELED,
    COMPLETED,
    FAILED,
    SUBMITTED,
    WORKING,
    moved,
    piece,
    server_on,
    stated,
    task,
)
from tests.support.a2a.versions import ME, MISSING, hear, names, read, save
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import Proxy


async def test_events_are_told_from_any_version_on(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    version = await save(tasks, task())
    versions = [version]
    for n in range(10):
        version = await save(tasks, task(), version, event=piece(str(n)) if n != 5 else None)
        versions.append(version)
    version = await save(tasks, task(state=COMPLETED), version, event=moved(COMPLETED))
    everything = await hear(stream, stream.version_at("t", ME))
    came = [str(n) for n in range(10) if n != 5]
    assert names(everything) == ["Task", *came, "TaskStatusUpdateEvent"]
    assert all(b.version.is_after(a.version) for a, b in pairwise(everything))
    for place, after in enumerate(versions):
        rest = [name for name in came if int(name) >= place]
        assert names(await hear(stream, after)) == [*rest, "TaskStatusUpdateEvent"]
    for event in everything:
        # A client's Last-Event-ID does the same as a version.
        assert isinstance(event.version, RedisTaskVersion)
        cursor = stream.version_at("t", ME, event.version.cursor)
        assert await hear(stream, cursor) == await hear(stream, event.version)
    assert await hear(stream, version) == []


async def test_a_subscription_goes_on_live_and_survives_a_lost_connection(
    settings: Settings, tasks: RedisVersionedTaskStore
) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        server_on(settings, url=proxy.url) as far,
    ):
        stream = create_event_stream(far)
        version = await save(tasks, task())
        heard: list[VersionedEvent] = []

        async def listen() -> None:
            async for event in stream.subscribe("t", after=version):
                heard.append(event)  # noqa: PERF401 - looked at meanwhile

        listening = asyncio.create_task(listen())
        begun = version
        for n in range(60):
            version = await save(tasks, task(), version, event=piece(str(n)))
            if n % 20 == 10:

                async def arrived(n: int = n) -> bool:
                    return str(n - 5) in names(heard)

                await eventually(arrived, "the events arrive")
                proxy.cut()
        await save(tasks, task(state=COMPLETED), version)
        async with asyncio.timeout(60):
            await listening
        assert proxy.cuts == 3
        assert names(heard)[:-1] == [str(n) for n in range(60)]
        assert heard == await hear(create_event_stream(tasks.backend), begun)


async def test_the_end_is_told_though_nobody_listened_when_it_came(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    version = await save(tasks, task())
    events = stream.subscribe("t", after=version)
    next_event = asyncio.ensure_future(anext(events))
    middle = await save(tasks, task(), version, event=piece("1"))
    assert (await next_event).version == middle
    await events.aclose()
    await save(tasks, task(state=FAILED), middle)
    for _ in range(2):
        # Hearing it again changes nothing of what is kept.
        before = await read(tasks)
        assert names(await hear(stream, version))[0] == "1"
        assert len(await hear(stream, middle)) == 1
        assert await read(tasks) == before


async def test_a_save_without_an_event_that_ends_the_task_tells_it(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    version = await save(tasks, task(), event=None)
    assert await _is_quiet(stream, version)
    await save(tasks, task(state=CANCELED), version, event=None)
    (reported,) = await hear(stream, version)
    assert reported.event == task(state=CANCELED)


async def _is_quiet(stream: RedisTaskEventStream, after: TaskVersion) -> bool:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(stream.subscribe("t", after=after))
    return True


async def test_publishing_what_was_saved_tells_it_once(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    version = await save(tasks, task())
    for _ in range(3):
        await stream.publish("t", VersionedEvent(task(), version))
    await stream.publish("t", VersionedEvent(stated("hello"), version))
    await stream.publish("t", VersionedEvent(stated("to nobody"), MISSING))
    last = (await read(tasks)).version
    assert last.is_after(version)
    await save(tasks, task(state=COMPLETED), last)
    kinds = [
        type(reported.event).__name__ for reported in await hear(stream, stream.version_at("t", ME))
    ]
    assert kinds == ["Task", "Message", "Task"]


async def test_a_version_of_no_task_or_another_is_refused(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    version = await save(tasks, task())
    await save(tasks, task("another"))
    for after in (MISSING, TaskVersion(1), TaskVersion("x"), version):
        with pytest.raises(InvalidParamsError, match="after"):
            await hear(stream, after, "another")
    for nonsense in ("", "x", "1", "-", "1-", "-1", "1-2-3", "1-x", "٣-٣", "9" * 40 + "-1"):
        with pytest.raises(InvalidParamsError, match="cursor"):
            stream.version_at("t", ME, nonsense)
    for nowhere in ("99-99", "1-1"):
        with pytest.raises(UnsupportedOperationError, match="no longer kept"):
            await hear(stream, stream.version_at("t", ME, nowhere))
    with pytest.raises(TaskNotFoundError):
        await hear(stream, stream.version_at("unknown", ME), "unknown")


async def test_events_that_were_dropped_are_a_gap_and_not_a_silence(settings: Settings) -> None:
    async with server_on(settings, max_events=10) as backend:
        tasks, stream = create_versioned_task_store(backend), create_event_stream(backend)
        first = version = late = await save(tasks, task())
        for n in range(40):
            version = await save(tasks, task(), version, event=piece(str(n)))
            late = version if n == 36 else late
        for gone in (first, stream.version_at("t", ME)):
            with pytest.raises(UnsupportedOperationError, match="read the task") as gap:
                await hear(stream, gone)
            said_of_it: Any = gap.value
            assert said_of_it.data["reason"] == "trimmed"
            assert said_of_it.data["missed"] >= 20
        await save(tasks, task(state=COMPLETED), version)
        assert names(await hear(stream, late))[:-1] == ["37", "38", "39"]


async def test_a_deleted_task_ends_what_watches_it_and_stays_deleted(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    version = await save(tasks, task())
    waiting = asyncio.ensure_future(hear(stream, version))
    assert await _is_quiet(stream, version)
    await tasks.delete("t", ME)
    with pytest.raises(TaskNotFoundError):
        await waiting
    assert await tasks.get("t", ME) is None
    for late in (version, stream.version_at("t", ME)):
        with pytest.raises(TaskNotFoundError):
            await hear(stream, late)
    for state in (WORKING, CANCELED, SUBMITTED):
        for at in (version, MISSING):
            with pytest.raises(ConcurrentTaskModificationError):
                await save(tasks, task(state=state), at)
    await tasks.delete("t", ME)
    await tasks.delete("unknown", ME)


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_who_subscribes_or_saves_over_a_version_of_a_lost_history_is_told(
    settings: Settings, others: int
) -> None:
    async with rolling_back() as server, server_on(settings, url=server.url) as backend:
        tasks, stream = create_versioned_task_store(backend), create_event_stream(backend)
        first = await save(tasks, task())
        await server.mark()
        lost = await save(tasks, task(), first, event=piece("lost"))
        await server.go_back()
        version = first
        for n in range(others):
            version = await save(tasks, task(), version, event=piece(str(n)))
        # The number of the lost version is that of an end now, of a row before it, or of none.
        assert (version == lost, version.is_after(first)) == (False, others > 0)
        with pytest.raises(ConcurrentTaskModificationError):
            await save(tasks, task(state=COMPLETED), lost)
        if others < 2:
            await save(tasks, task(state=COMPLETED), version)
        with pytest.raises(UnsupportedOperationError, match="read the task"):
            await hear(stream, lost)
