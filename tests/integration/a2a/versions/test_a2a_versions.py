"""The A2A SDK's versioned tasks: a stale version writes nothing, and an end stays the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from a2a.server.cluster import (
    ConcurrentTaskModificationError,
    StoredTask,
    TaskVersion,
    VersionedEvent,
)
from a2a.types.a2a_pb2 import ListTasksRequest, Task
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError

from redis_state import Settings
from redis_state.errors import BackendUnavailable
from redis_state.integrations.a2a import (
    A2AOptions,
    connect,
    create_event_stream,
    create_versioned_task_store,
)
from redis_state.integrations.a2a.versioned import (
    RedisTaskEventStream,
    RedisVersionedTaskStore,
)
from redis_state.scripts import Scripts
from tests.support.a2a.rows import all_keys
from tests.support.a2a.tasks import (
    CANCELED,
    COMPLETED,
    FAILED,
    WAITING,
    WORKING,
    caller,
    moved,
    piece,
    server_on,
    speaking,
    stated,
    task,
)
from tests.support.a2a.versions import ME, MISSING, hear, read, save
from tests.support.scripts.replies import lives
from tests.support.servers.faults import Proxy


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


async def test_a_cancel_keeps_what_was_saved_since_its_task_was_read(
    tasks: RedisVersionedTaskStore, stream: RedisTaskEventStream
) -> None:
    first = await save(tasks, task())
    second = await save(tasks, speaking(task(text="result"), "almost done"), first)
    made_of_first = speaking(task(state=CANCELED), "stop")
    event = moved(CANCELED)
    event.metadata.update({"by": "ann"})
    version = await save(tasks, made_of_first, first, event=event)
    expected = speaking(task(state=CANCELED, text="result"), "stop")
    expected.history.append(stated("almost done"))
    expected.metadata.update({"by": "ann"})
    assert await read(tasks) == StoredTask(expected, version)
    assert version.is_after(second)
    assert [reported.event for reported in await hear(stream, second)] == [event]


async def test_a_cancel_loses_nothing_to_an_agent_that_saves_meanwhile(
    settings: Settings, tasks: RedisVersionedTaskStore
) -> None:
    made, version = task(), await save(tasks, task())

    async def work() -> None:
        nonlocal made, version
        more = Task.FromString(made.SerializeToString())
        more.artifacts.append(piece(str(len(made.artifacts))).artifact)
        version = await save(tasks, more, version)
        made = more

    async with server_on(settings) as afar:
        canceling = create_versioned_task_store(afar)
        stale = (await read(canceling)).version
        await work()
        end = save(canceling, task(state=CANCELED), stale, event=moved(CANCELED))
        ending = asyncio.create_task(end)
        # Fewer than a cancel tries: each save can cost it one.
        with suppress(ConcurrentTaskModificationError):
            for _ in range(15):
                await work()
        await ending
    found = (await read(tasks)).task
    assert found.status.state == CANCELED
    assert found.artifacts == made.artifacts


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


@pytest.mark.parametrize(("seconds", "nanos"), [(10**15, 0), (1, -5)])
async def test_a_time_that_cannot_be_is_refused(
    tasks: RedisVersionedTaskStore, seconds: int, nanos: int
) -> None:
    made, wanted = task(), ListTasksRequest()
    for moment in (made.status.timestamp, wanted.status_timestamp_after):
        moment.seconds, moment.nanos = seconds, nanos
    with pytest.raises(InvalidParamsError, match="task: its timestamp"):
        await save(tasks, made)
    with pytest.raises(InvalidParamsError, match="status_timestamp_after"):
        await tasks.list(wanted, ME)


async def test_versioned_tasks_are_listed(tasks: RedisVersionedTaskStore) -> None:
    for name in ("a", "b"):
        await save(tasks, task(name))
    page = await tasks.list(ListTasksRequest(page_size=1), ME)
    assert [one.id for one in page.tasks] == ["b"]
    rest = ListTasksRequest(page_size=1, page_token=page.next_page_token)
    assert [one.id for one in (await tasks.list(rest, ME)).tasks] == ["a"]
    with pytest.raises(InvalidParamsError, match="page_token"):
        await tasks.list(rest, caller("bob"))


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
