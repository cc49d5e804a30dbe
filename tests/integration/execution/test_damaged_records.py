"""A damaged value ends its own task, as a dead letter that says where it is, and hides no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import CorruptState
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.worker import TaskContext
from redis_state.worker.tasks.handed_back import MOST_UNREAD
from redis_state.worker.tasks.views.dead_list import list_first_dead
from tests.support.processes.pools import SESSION, client_of, found_are
from tests.support.tasks.runs import TASK, begin_again, make, run_once, run_unread

OTHER = "other"
HEADS: dict[str, Callable[[RedisStateStore], str]] = {
    "updates": lambda store: store.updates.keys(SESSION).ids,
    "steering": lambda store: store.steering.keys(SESSION).ids,
}


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    return await store.transport.sender.send(*command, repeatable=True)


async def handler(ctx: TaskContext) -> str:
    done = await ctx.step("a", str, "done")
    if ctx.attempt == 1:
        begin_again()
    return done


async def begin(store: RedisStateStore) -> str:
    """Leave a task that has begun beside one that has ended; return the key of its record."""
    await make(store)
    assert (await run_once(store, handler)).status is TaskStatus.PENDING
    await make(store, OTHER)
    await run_once(store, handler, task_id=OTHER)
    assert (await run_once(store, handler, task_id=OTHER)).status is TaskStatus.COMPLETE
    return store.base.keys.task(SESSION, TASK)


async def put(store: RedisStateStore, key: str, field: str, value: bytes = b"x") -> bytes | None:
    """Write a field of a hash as nobody of the library does; return what it was."""
    was: bytes | None = await send(store, "HGET", key, field)
    await send(store, "HSET", key, field, value)
    await send(store, "PEXPIRE", key, 60_000)
    return was


async def repair(store: RedisStateStore, key: str, field: str, was: bytes | None) -> None:
    if was is None:
        await send(store, "HDEL", key, field)
    else:
        await send(store, "HSET", key, field, was)


async def check_lease_free(store: RedisStateStore) -> None:
    assert not await send(store, "HGET", store.base.keys.lease(SESSION, TASK), "owner")


async def check_retried(store: RedisStateStore) -> None:
    """Check that a repaired task continues with its journal."""
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
    ended = await run_once(store, handler)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "done")


@pytest.mark.parametrize("log", list(HEADS))
@pytest.mark.role("any", why="it damages a key")
async def test_a_log_of_the_session_with_a_damaged_head_fails_a_task_at_once(
    store: RedisStateStore, log: str
) -> None:
    await begin(store)
    key = HEADS[log](store)
    was = await put(store, key, "")
    ended = await run_once(store, handler)
    assert ended.status is TaskStatus.FAILED
    assert "start_task found a value that does not belong" in (ended.error or "")
    assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]
    await check_lease_free(store)
    await repair(store, key, "", was)
    await check_retried(store)


@pytest.mark.parametrize("field", ["attempts", "retries", "priority", "order", "format"])
@pytest.mark.role("any", why="it damages a key")
async def test_a_record_with_a_number_that_is_none_is_failed_and_hides_no_other_task(
    store: RedisStateStore, field: str
) -> None:
    key = await begin(store)
    was = await put(store, key, field)
    for _ in range(MOST_UNREAD):
        if await send(store, "HGET", key, "status") != b"FAILED":
            await run_unread(store, handler)
    assert await send(store, "HGET", key, "status") == b"FAILED"
    await check_lease_free(store)
    async with client_of(store) as client:
        # It cannot be listed. It can be asked for, and none is in its way.
        await list_first_dead(store, 10)
        await found_are(client, TaskStatus.COMPLETE, 1)
        if field != "format":
            with pytest.raises(CorruptState) as told:
                await client.inspect(SESSION, TASK)
            assert key in str(told.value)
    await repair(store, key, field, was)
    assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]
    await check_retried(store)


@pytest.mark.parametrize("field", ["crashes", "handed_back"])
@pytest.mark.role("any", why="it damages a key")
async def test_a_count_that_each_hand_over_writes_anew_is_no_lasting_damage(
    store: RedisStateStore, field: str
) -> None:
    key = await begin(store)
    await put(store, key, field)
    for _ in range(2):
        await run_unread(store, handler)
    ended = await store.tasks.load(SESSION, TASK)
    assert ended is not None
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "done")


@pytest.mark.parametrize("field", ["version", None])
@pytest.mark.role("any", why="it damages a key")
async def test_a_record_that_is_none_waits_for_its_repair_and_hides_no_other_task(
    store: RedisStateStore, field: str | None
) -> None:
    key = await begin(store)
    kept = await send(store, "DUMP", key)
    if field is None:
        await send(store, "SET", key, "x", "PX", 60_000)
    else:
        await put(store, key, field)
    for _ in range(2):
        await run_unread(store, handler)
    await check_lease_free(store)
    assert await list_first_dead(store, 10) == []
    async with client_of(store) as client:
        await found_are(client, TaskStatus.COMPLETE, 1)
        assert [task.task_id for task in (await client.find()).tasks] == [OTHER]
        for call in (client.inspect, client.retry, client.fork, client.rerun):
            with pytest.raises(CorruptState) as told:
                await call(SESSION, TASK)
            assert key in str(told.value)
    await send(store, "RESTORE", key, 60_000, kept, "REPLACE")
    ended = await run_once(store, handler)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "done")


@pytest.mark.parametrize("field", ["priority", "document", None])
@pytest.mark.role("any", why="it damages a key")
async def test_who_cancels_steers_or_awaits_a_damaged_task_is_told_so(
    store: RedisStateStore, field: str | None
) -> None:
    key = await begin(store)
    kept = await send(store, "DUMP", key)
    if field is None:
        await send(store, "SET", key, "x", "PX", 60_000)
    else:
        await put(store, key, field)
    async with client_of(store) as client:
        calls: list[Callable[[], Any]] = [
            lambda: client.cancel(SESSION, TASK),
            lambda: client.cancel(SESSION, TASK, idempotency_key="once"),
            lambda: client.steer(SESSION, TASK, SteeringEventType.PAUSE),
            lambda: client.wait(SESSION, TASK, timeout_s=10),
            lambda: anext(aiter(client.watch(SESSION, TASK))),
        ]
        for call in calls:
            with pytest.raises(CorruptState) as told:
                await call()
            assert key in str(told.value)
        await send(store, "RESTORE", key, 60_000, kept, "REPLACE")
        # Nothing of it was done.
        state = await store.tasks.load(SESSION, TASK)
        assert state is not None
        assert state.status is TaskStatus.PENDING
        assert (await store.read_steering(SESSION, task_id=TASK)).entries == []
        assert await client.cancel(SESSION, TASK)
        assert not await client.cancel(SESSION, "unknown")


@pytest.mark.role("any", why="it damages a key")
async def test_a_session_with_a_task_whose_document_is_damaged_is_erased(
    store: RedisStateStore,
) -> None:
    key = await begin(store)
    await put(store, key, "document")
    async with client_of(store) as client:
        await client.forget(SESSION)
    assert await send(store, "EXISTS", key) == 0


@pytest.mark.role("any", why="it damages a key")
async def test_a_damaged_entry_of_a_journal_is_named(store: RedisStateStore) -> None:
    await begin(store)
    journal = store.base.keys.journal(SESSION, TASK)
    was = await put(store, journal, "step:a#1", b"[1,2")
    for _ in range(MOST_UNREAD - 1):
        await run_once(store, handler)
    ended = await run_once(store, handler)
    why = "the entry 'step:a#1' of its journal: not JSON at character 4"
    assert ended.error == f"the task cannot be read: DecodeError: {why}"
    async with client_of(store) as client:
        for call in (client.retry, client.fork):
            with pytest.raises(CorruptState) as told:
                await call(SESSION, TASK)
            assert f"{journal}: {why}" in str(told.value)
    await repair(store, journal, "step:a#1", was)
    await check_retried(store)
