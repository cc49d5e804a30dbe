"""The A2A SDK's versioned tasks and their events: one winner, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.server.cluster import (
    ConcurrentTaskModificationError,
    StoredTask,
    TaskVersion,
    VersionedEvent,
)
from a2a.types.a2a_pb2 import ListTasksRequest, Task, TaskArtifactUpdateEvent
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError

from redis_state import Settings
from redis_state.errors import BackendUnavailable
from redis_state.integrations.a2a import (
    A2ABackend,
    A2AOptions,
    connect,
    create_event_stream,
    create_versioned_task_store,
)
from redis_state.integrations.a2a.versioned import (
    RedisTaskEventStream,
    RedisTaskVersion,
    RedisVersionedTaskStore,
)
from redis_state.scripts import Scripts
from redis_state.testing import eventually
from tests.support.a2a.rows import all_keys
from tests.support.a2a.tasks import (
    CANCELED,
    COMPLETED,
    FAILED,
    SUBMITTED,
    WAITING,
    WORKING,
    caller,
    moved,
    piece,
    server_on,
    stated,
    task,
)
from tests.support.scripts.replies import lives
from tests.support.servers.faults import Proxy, begin_processes, run_processes
from tests.support.servers.rollback import rolling_back
from tests.support.sizes import sizes

ME = caller()
MISSING = TaskVersion.MISSING


@pytest.fixture
async def backend(settings: Settings) -> AsyncIterator[A2ABackend]:
    async with server_on(settings) as made:
        yield made


@pytest.fixture
def tasks(backend: A2ABackend) -> RedisVersionedTaskStore:
    return create_versioned_task_store(backend)


@pytest.fixture
def stream(backend: A2ABackend) -> RedisTaskEventStream:
    return create_event_stream(backend)


async def save(
    tasks: RedisVersionedTaskStore, made: Task, version: TaskVersion = MISSING, **more: Any
) -> TaskVersion:
    requested: dict[str, Any] = {"event": made, "prev": None, "context": ME, **more}
    return await tasks.save(made, prev_version=version, **requested)


async def read(tasks: RedisVersionedTaskStore, task_id: str = "t", context: Any = ME) -> StoredTask:
    found = await tasks.get(task_id, context)
    assert found is not None
    return found


async def hear(
    stream: RedisTaskEventStream, after: TaskVersion, task_id: str = "t"
) -> list[VersionedEvent]:
    async with asyncio.timeout(60):
        return [event async for event in stream.subscribe(task_id, after=after)]


def names(events: list[VersionedEvent]) -> list[str]:
    """Tell events by what they bring; others by their kind."""
    return [
        reported.event.artifact.artifact_id
        if isinstance(reported.event, TaskArtifactUpdateEvent)
        else type(reported.event).__name__
        for reported in events
    ]


# Versions


async def test_a_task_comes_back_as_it_was_saved(tasks: RedisVersionedTaskStore) -> None:
    made = task("any {id}:*?[a]|%~ \0 ü 漢 " + "x" * 500, context="*", ns=1, text="text")
    made.metadata.update({"a": [1, None, {"b": "c"}]})
    made.history.append(stated("hello"))
    version = await save(tasks, made)
    found = await read(tasks, made.id)
    assert found.task == made
    assert found.version == version
    assert version.is_after(MISSING)
    found.task.status.state = FAILED
    assert (await read(tasks, made.id)).task == made


async def test_what_a_later_protocol_adds_is_kept(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    unknown = b"\xfa\x7f\x05later"  # field 2047, five bytes
    made = Task.FromString(task(state=COMPLETED).SerializeToString() + unknown)
    await save(tasks, made)
    assert (await read(tasks)).task.SerializeToString().endswith(unknown)
    (reported,) = await hear(stream, stream.version_at("t", ME))
    assert reported.event.SerializeToString().endswith(unknown)


async def test_a_stale_version_writes_nothing(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    first = await save(tasks, task())
    second = await save(tasks, task(text="2"), first)
    for stale in (first, MISSING, TaskVersion(7)):
        with pytest.raises(ConcurrentTaskModificationError):
            await save(tasks, task(state=COMPLETED), stale)
    assert await read(tasks) == StoredTask(task(text="2"), second)
    for nonsense in (TaskVersion("1"), TaskVersion(-1), TaskVersion(True)):  # noqa: FBT003
        with pytest.raises(InvalidParamsError, match="prev_version"):
            await save(tasks, task(), nonsense)
    await save(tasks, task(state=COMPLETED), second)
    assert len(await hear(stream, stream.version_at("t", ME))) == 3


async def test_an_id_of_another_owner_or_tenant_is_another_task(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    mine = await save(tasks, task(text="mine"))
    others = [
        caller("bob"),
        caller("ann", tenant="x"),
        caller(""),
        caller("", tenant="ann"),
        caller("ann/x"),
        caller("ANN"),
    ]
    for other in others:
        assert await tasks.get("t", other) is None
        with pytest.raises(ConcurrentTaskModificationError):
            await save(tasks, task(), mine, context=other)
        with pytest.raises(ConcurrentTaskModificationError):
            await save(tasks, task(state=CANCELED), mine, context=other)
        with pytest.raises(TaskNotFoundError):
            await hear(stream, stream.version_at("t", other))
        await tasks.delete("t", other)
    for number, other in enumerate(others):
        theirs = await save(tasks, task(text=str(number)), context=other)
        with pytest.raises(ConcurrentTaskModificationError):
            await save(tasks, task(), theirs)
    texts = [
        (await read(tasks, context=one)).task.artifacts[0].parts[0].text for one in (ME, *others)
    ]
    assert texts == ["mine", *map(str, range(len(others)))]


@pytest.mark.parametrize("end", [COMPLETED, FAILED, CANCELED])
async def test_an_end_stays_the_end(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream, end: Any
) -> None:
    first = await save(tasks, task())
    version = await save(tasks, task(state=end), first)
    for late in (WORKING, COMPLETED, CANCELED, WAITING):
        with pytest.raises(ConcurrentTaskModificationError):
            await save(tasks, task(state=late), version)
    with pytest.raises(UnsupportedOperationError, match="terminal state"):
        await stream.publish("t", VersionedEvent(stated("late"), version))
    assert await read(tasks) == StoredTask(task(state=end), version)
    assert len(await hear(stream, stream.version_at("t", ME))) == 2


async def test_a_cancel_needs_no_version_but_a_task(tasks: RedisVersionedTaskStore) -> None:
    with pytest.raises(ConcurrentTaskModificationError):
        await save(tasks, task(state=CANCELED))
    first = await save(tasks, task())
    await save(tasks, task(text="2"), first)
    version = await save(tasks, task(state=CANCELED), first)
    assert (await read(tasks)).version == version


async def test_what_is_too_large_is_refused_whole(settings: Settings) -> None:
    async with server_on(settings, max_bytes=10_000) as backend:
        tasks, stream = create_versioned_task_store(backend), create_event_stream(backend)
        room = 10_000 - len(task(text="x").SerializeToString()) - 2
        version = await save(tasks, task(text="x" * (room - 200)))
        for size in (room, 1_000_000):
            with pytest.raises(InvalidParamsError, match="bytes, 10000 are allowed") as refused:
                await save(tasks, task(text="x" * (size + 3)), version)
            assert "xxx" not in str(refused.value)
        with pytest.raises(InvalidParamsError, match="event"):
            await save(tasks, task(), version, event=piece("y" * 20_000))
        assert (await read(tasks)).version == version
        await save(tasks, task(state=COMPLETED), version)
        assert len(await hear(stream, stream.version_at("t", ME))) == 2


async def test_a_payload_of_every_size_comes_back(tasks: RedisVersionedTaskStore) -> None:
    version: TaskVersion = MISSING
    for power in range(0, 22, 3):
        made = task(text="é" * (1 << power) + "\n\0")
        version = await save(tasks, made, version)
        assert (await read(tasks)).task == made


async def test_a_task_without_an_id_is_refused(tasks: RedisVersionedTaskStore) -> None:
    with pytest.raises(InvalidParamsError, match="an id is needed"):
        await save(tasks, task(""))


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
    assert sorted(name for names in won for name in names) == sorted(races)
    for who, names in enumerate(won):
        for name in names:
            state = CANCELED if who % 2 else COMPLETED
            assert (await read(tasks, name)).task.status.state == state
            assert len(await hear(stream, stream.version_at(name, ME), name)) == 2


# Events


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


async def test_versioned_tasks_are_listed(tasks: RedisVersionedTaskStore) -> None:
    for name in ("a", "b"):
        await save(tasks, task(name))
    page = await tasks.list(ListTasksRequest(page_size=1), ME)
    assert [one.id for one in page.tasks] == ["b"]
    rest = ListTasksRequest(page_size=1, page_token=page.next_page_token)
    assert [one.id for one in (await tasks.list(rest, ME)).tasks] == ["a"]
    with pytest.raises(InvalidParamsError, match="page_token"):
        await tasks.list(rest, caller("bob"))


# Deletion and retention


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


async def test_what_is_kept_has_a_lifetime_and_an_end_shortens_it(
    settings: Settings, tasks: RedisVersionedTaskStore, scripts: Scripts
) -> None:
    ref = tasks.backend.ref("t", ME)
    keys = tasks.backend.tasks.keys(ref)
    version = await save(tasks, task())
    active = await lives(scripts, *all_keys(keys))
    await save(tasks, task(state=COMPLETED), version)
    ended = await lives(scripts, keys.task, keys.events.rows, keys.events.ids)
    wanted = settings.active_task_ttl.total_seconds() * 1000
    finished = settings.finished_task_ttl.total_seconds() * 1000
    assert wanted * 0.99 < active[0] <= wanted
    assert finished * 0.99 < ended[0] <= finished
    assert all(ended[0] - 1000 < left <= finished * 1.5 for left in ended[1:])
    await tasks.delete("t", ME)
    (left, *_) = await lives(scripts, keys.task)
    assert 0 < left <= 24 * 3_600_000


async def test_a_server_that_is_away_is_no_protocol_error(settings: Settings) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        proxy.refuse()
        hurry = {"call_timeout_s": 0.5, "connect_timeout_s": 0.5}
        backend = connect(proxy.url, A2AOptions(), namespace=settings.namespace, **hurry)
        tasks = create_versioned_task_store(backend)
        with pytest.raises(BackendUnavailable):
            await tasks.get("t", ME)
        assert proxy.refused > 0
        await backend.aclose()


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
