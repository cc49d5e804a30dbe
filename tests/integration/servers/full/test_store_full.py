"""A server that is out of memory: writes are refused by name, reads go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from redis_state import RedisStateStore, StoreFull
from redis_state.embedded.server import start_embedded
from redis_state.models import Trajectory
from redis_state.stores.base import ms
from redis_state.testing import eventually
from tests.support.samples import (
    admin,
    binding,
    event,
    own_server,
    planner_event,
    steering,
    task,
    update,
)


@pytest.fixture
async def full() -> AsyncIterator[RedisStateStore]:
    """Give a store on a server of its own, with one thing of each kind in it."""
    with own_server() as server:
        async with RedisStateStore.from_url(server.url) as store:
            await _fill(store, "before")
            # Scripts that were never run must not make a difference.
            await admin(store, "SCRIPT", "FLUSH")
            await admin(store, "CONFIG", "SET", "maxmemory", 1)
            yield store


async def _fill(store: RedisStateStore, name: str) -> None:
    await store.save_event(event(node_id=name))
    await store.save_remote_binding(binding(name))
    await store.save_planner_state(name, {"n": name})
    await store.save_memory_state("key", {"n": name})
    await store.save_task(task(name))
    await store.save_update(update(name, name))
    await store.save_steering(steering(name))
    await store.save_trajectory(name, "session", Trajectory(name))
    await store.save_planner_event("trace", planner_event(thought=name))


async def _check(store: RedisStateStore, *names: str) -> None:
    assert [each.node_id for each in await store.load_history("trace")] == list(names)
    assert [each.task_id for each in await store.list_remote_bindings("trace")] == list(names)
    assert await store.load_memory_state("key") == {"n": names[-1]}
    assert [each.task_id for each in await store.list_tasks("session")] == list(names)
    assert [each.content for each in await store.list_updates("session")] == list(names)
    assert len(await store.list_updates("session", task_id="task")) == len(names)
    assert [each.content for each in (await store.read_updates("session")).values] == list(names)
    assert [each.event_id for each in await store.list_steering("session")] == list(names)
    assert await store.list_traces("session") == list(reversed(names))
    assert await store.get_trajectory(names[0], "session") == Trajectory(names[0])
    assert [each.thought for each in await store.list_planner_events("trace")] == list(names)
    assert await store.update_cursor("session", names[-1])


WRITES: dict[str, Callable[[RedisStateStore], Awaitable[object]]] = {
    "event": lambda store: store.save_event(event(5.0)),
    "events": lambda store: store.save_events([event(6.0), event(7.0, trace_id="other")]),
    "binding": lambda store: store.save_remote_binding(binding("after")),
    "pause": lambda store: store.save_planner_state("after", {}),
    "load of a pause": lambda store: store.load_planner_state("before"),
    "memory": lambda store: store.save_memory_state("key", {"n": "after"}),
    "task": lambda store: store.save_task(task("after")),
    "update": lambda store: store.save_update(update("after")),
    "steering": lambda store: store.save_steering(steering("after")),
    "trajectory": lambda store: store.save_trajectory("after", "session", Trajectory("q")),
    "planner event": lambda store: store.save_planner_event("trace", planner_event()),
}


async def test_a_full_server_refuses_writes_serves_reads_and_recovers(
    full: RedisStateStore,
) -> None:
    for name, write in WRITES.items():
        with pytest.raises(StoreFull) as caught:
            await write(full)
        assert str(full.transport.address) in str(caught.value), name
    await _check(full, "before")
    health = await full.health()
    assert health.ok
    assert health.details["maxmemory"] == "1"
    await admin(full, "CONFIG", "SET", "maxmemory", 0)
    await _fill(full, "again")
    await _check(full, "before", "again")
    assert await full.load_planner_state("before") == {"n": "before"}


async def test_a_full_server_gives_what_counts_as_used_when_it_is_read(
    full: RedisStateStore,
) -> None:
    ids = ("tenant_id", "user_id", "session_id", "task_id", "trace_id")
    owner: dict[str, str] = dict.fromkeys(ids, "x")
    kv = full.kv.bind(owner)
    await admin(full, "CONFIG", "SET", "maxmemory", 0)
    artifact = await full.artifact_store.put_text("text")
    await kv.set("large", "x" * 10_000)
    await full.streams.create("stream", data=b"row")
    await admin(full, "CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreFull):
        await full.artifact_store.put_text("another")
    assert await full.artifact_store.get(artifact.id) == b"text"
    assert await kv.get("large") == "x" * 10_000
    assert (await full.streams.read("stream")).rows == (b"row",)


async def test_a_row_that_cannot_be_kept_aside_for_want_of_room_is_still_left_out(
    full: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    await admin(full, "CONFIG", "SET", "maxmemory", 0)
    await admin(full, "HSET", full.base.keys.memory("key"), "document", "garbage")
    await admin(full, "CONFIG", "SET", "maxmemory", 1)
    assert await full.load_memory_state("key") is None
    assert await full.unreadable(memory_key="key") == []
    assert "could not be kept aside" in caplog.text
    assert (await full.health()).unreadable_rows == 1


async def test_a_full_server_can_be_cleared_of_what_workers_run(full: RedisStateStore) -> None:
    """Their leases are fenced, and the steering of their tasks is held."""
    await admin(full, "CONFIG", "SET", "maxmemory", 0)
    key = full.tasks.keys("session", "before").task
    await admin(full, "HSET", key, "job", "{}", "attempts", 1)
    await full.save_steering(steering("held", task_id="before"))
    left_ms = await admin(full, "PTTL", full.steering.keys("session").rows)
    assert left_ms > 1.5 * ms(full.settings.steering_ttl)
    await admin(full, "CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(StoreFull):
        await full.save_update(update("after"))
    await full.clear_session("session")
    assert await full.list_tasks("session") == []
    assert await full.list_steering("session") == []
    lease = full.tasks.keys("session", "before").lease
    assert await admin(full, "HGET", lease, "epoch")


async def test_a_full_server_can_be_cleared(full: RedisStateStore) -> None:
    with pytest.raises(StoreFull):
        await full.save_update(update("after"))
    # What is there, and what is not: a removal keeps its reply for its repetition all the same.
    for there in (True, False):
        assert await full.memory.delete("key") is there
    assert await full.load_memory_state("key") is None
    await full.clear_session("session")
    assert await full.list_tasks("session") == []
    assert await full.list_updates("session") == []


async def test_a_full_server_tells_watchers_of_nothing_that_it_refused() -> None:
    with start_embedded(None) as server:
        async with RedisStateStore.from_url(server.url) as full:
            seen: list[str] = []

            async def watch() -> None:
                async for entry in full.watch_updates("session"):
                    seen.append(entry.value.update_id)
                    if entry.value.update_id == "after":
                        return

            watching = asyncio.create_task(watch())
            await full.save_update(update("before"))
            await eventually(lambda: seen == ["before"], "the watcher listens")
            sender = full.transport.sender
            await sender.send("CONFIG", "SET", "maxmemory", "1000", repeatable=True)
            for session in ("session", "another"):
                with pytest.raises(StoreFull):
                    await full.save_update(update("refused", session_id=session))
            await sender.send("CONFIG", "SET", "maxmemory", "0", repeatable=True)
            await full.save_update(update("after"))
            async with asyncio.timeout(60):
                await watching
            assert seen == ["before", "after"]
