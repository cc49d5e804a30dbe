"""A task is read as a whole, though it is damaged, dropped, trimmed or made anew meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from redis_state import (
    CorruptState,
    RedisStateStore,
    Settings,
    TaskUnknown,
)
from redis_state.integrations.embabel.task_state_manager import (
    A2AState,
    TaskStateManager,
)
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Page
from redis_state.testing import eventually
from redis_state.transport.keys import a2a_keys, manager_scope
from tests.processes.a2a.keep_task_states import chunk, name_of, status
from tests.support.a2a.rows import write
from tests.support.a2a.task_states import hear, names
from tests.support.scripts.replies import ask, outcome


@pytest.fixture
async def damaged(store: RedisStateStore, tasks: TaskStateManager) -> AsyncIterator[None]:
    """End a task with an event that cannot be read."""
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", chunk("a"))
    keys = a2a_keys(store.base.keys, manager_scope(""), "t")
    ended = {"rule": "open", "state": "failed", "phase": "e", "row": b"enot JSON", "owner": ""}
    await write(store.base.scripts, keys, **ended, place=b"= ended -")
    yield
    await store.base.settle()


@pytest.mark.usefixtures("damaged")
async def test_an_event_that_cannot_be_read_is_left_out_and_a_subscription_ends_all_the_same(
    store: RedisStateStore, tasks: TaskStateManager
) -> None:
    assert names(await hear(tasks)) == ["a"]
    info = await tasks.get_task_info("t")
    assert info is not None
    assert ([name_of(event) for event in info.events], info.dropped) == (["a"], 0)
    assert info.current_state is A2AState.FAILED
    (aside,) = await store.base.unreadable("")
    assert aside.place.startswith("event of t 2-")


async def test_what_is_no_registered_task_is_corrupt(
    store: RedisStateStore, tasks: TaskStateManager
) -> None:
    key = store.base.keys.a2a_task(manager_scope(""), "t")
    await ask(store.base.scripts, "HSET", key, "state", "secret")
    await ask(store.base.scripts, "PEXPIRE", key, 60_000)
    error = await outcome(tasks.get_task_info("t"), CorruptState)
    assert isinstance(error, CorruptState)
    assert "secret" not in str(error)
    await ask(store.base.scripts, "DEL", key)
    await ask(store.base.scripts, "SET", key, "text", "PX", 60_000)
    with pytest.raises(CorruptState):
        await tasks.record_event("t", chunk("a"))


async def test_a_task_that_is_dropped_and_made_anew_while_it_is_read_is_read_as_one_or_the_other(
    tasks: TaskStateManager,
) -> None:
    going = True

    async def live() -> int:
        lives = 0
        while going:
            await tasks.register_task("t", str(lives), "s")
            for _ in range(3):
                await tasks.record_event("t", chunk(str(lives)))
            await tasks.record_event("t", status("completed", str(lives)))
            await tasks.cleanup_old_tasks(timedelta(0))
            lives += 1
        return lives

    living = asyncio.create_task(live())
    seen: set[str] = set()

    async def read() -> bool:
        info = await tasks.get_task_info("t")
        if info is not None:
            assert {name_of(event) for event in info.events} <= {info.context_id}
            assert info.dropped == 0
            seen.add(info.context_id)
        return len(seen) >= 20

    await eventually(read, "20 lives are seen", timeout_s=30)
    going = False
    assert await living >= 20


def between_pages(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Awaitable[Any]]) -> None:
    """Let something happen once, after the first page of a log was read."""
    read, left = Log.read, [happens]

    async def reading(log: Log, **requested: Any) -> Page:
        if requested["after"] is not None and left:
            await left.pop()()
        return await read(log, **requested)

    monkeypatch.setattr(Log, "read", reading)


async def report(tasks: TaskStateManager, life: str, count: int) -> None:
    await tasks.register_task("t", life, "s")
    await asyncio.gather(*(tasks.record_event("t", chunk(life)) for _ in range(count)))


@pytest.mark.parametrize("anew", [0, 3, 700])
async def test_a_task_that_is_dropped_between_two_pages_is_read_anew(
    tasks: TaskStateManager, monkeypatch: pytest.MonkeyPatch, anew: int
) -> None:
    async def another_life() -> None:
        await tasks.record_event("t", status("completed"))
        assert await tasks.cleanup_old_tasks(timedelta(0)) == 1
        if anew:
            await report(tasks, "second", anew)

    await report(tasks, "first", 600)
    between_pages(monkeypatch, another_life)
    info = await tasks.get_task_info("t")
    if not anew:
        assert info is None
        return
    assert info is not None
    assert (info.context_id, info.dropped) == ("second", 0)
    assert [name_of(event) for event in info.events] == ["second"] * anew


@pytest.mark.parametrize(("more", "left"), [(300, 700), (600, 100), (2000, 0)])
async def test_what_is_trimmed_between_two_pages_is_told_as_dropped(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, more: int, left: int
) -> None:
    few = settings.model_copy(update={"max_updates_per_a2a_task": 700})
    async with RedisStateStore(few) as store:
        tasks = TaskStateManager(store)
        await report(tasks, "a", 700)
        between_pages(monkeypatch, lambda: report(tasks, "b", more))
        info = await tasks.get_task_info("t")
        assert info is not None
        assert {name_of(event) for event in info.events} <= {"a"}
        assert len(info.events) + info.dropped == 700
        assert left <= len(info.events) <= left + 64
        assert info.cursor.startswith("700-")


@pytest.mark.parametrize("lost", [["ids"], ["rows"], ["ids", "rows"]])
async def test_a_task_whose_events_the_server_lost_is_read_without_them(
    tasks: TaskStateManager, store: RedisStateStore, lost: list[str]
) -> None:
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", status("working"))
    log = a2a_keys(store.base.keys, manager_scope(""), "t").events
    for part in lost:
        await ask(store.base.scripts, "DEL", getattr(log, part))
    async with asyncio.timeout(30):
        info = await tasks.get_task_info("t")
        again = await tasks.register_task("t", "c", "s")
    assert info is not None
    assert (info.events, info.dropped, info.current_state) == ([], 1, A2AState.WORKING)
    assert again.info == info
    await tasks.record_event("t", status("completed"))
    after = await tasks.get_task_info("t")
    assert after is not None
    assert (len(after.events), after.dropped) == (1, 1)


async def test_a_repeated_event_of_a_task_that_is_gone_is_of_an_unknown_task(
    tasks: TaskStateManager, store: RedisStateStore
) -> None:
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", status("working"), event_id="e")
    await ask(store.base.scripts, "DEL", a2a_keys(store.base.keys, manager_scope(""), "t").task)
    with pytest.raises(TaskUnknown):
        await tasks.record_event("t", status("working"), event_id="e")
