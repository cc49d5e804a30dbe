"""The task state manager: a task's states, its end, and how many there are."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from redis_state import (
    InvalidTransition,
    RedisStateStore,
)
from redis_state.integrations.embabel.task_state_manager import (
    A2AState,
    EventKind,
    TaskCounts,
    TaskStateManager,
)
from redis_state.transport.keys import manager_scope
from tests.processes.a2a.keep_task_states import chunk, name_of, status
from tests.support.a2a.task_states import MESSAGE, TASK
from tests.support.processes import children
from tests.support.scripts.replies import ask, clock_ms, outcome

ENDS = ["completed", "canceled", "failed", "rejected", "unknown"]
GOES_ON = ["submitted", "working", "input-required", "auth-required"]


async def test_register_and_retrieve_a_task(tasks: TaskStateManager) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    made = await tasks.register_task("test-task", "ctx", "stream")
    info = await tasks.get_task_info("test-task")
    assert made.created
    assert info is not None
    assert info == made.info
    assert (info.task_id, info.context_id, info.stream_id) == ("test-task", "ctx", "stream")
    assert (info.events, info.completed_at, info.dropped) == ([], None, 0)
    assert info.current_state is A2AState.WORKING
    assert before < info.created_at < before + timedelta(minutes=2)
    assert await tasks.is_task_active("test-task")
    assert await tasks.task_exists("test-task")
    assert await tasks.get_stream_id("test-task") == "stream"


async def test_a_terminal_event_moves_a_task_to_the_completed_ones(
    tasks: TaskStateManager,
) -> None:
    made = await tasks.register_task("t", "ctx", "stream")
    await tasks.record_event("t", status("working", "Starting task..."))
    assert await tasks.is_task_active("t")
    assert await tasks.count_active_tasks() == 1
    await tasks.record_event("t", status("completed", "Task completed: 42", task_id="t"))
    assert not await tasks.is_task_active("t")
    assert await tasks.task_exists("t")
    assert (await tasks.count_active_tasks(), await tasks.count_completed_tasks()) == (0, 1)
    info = await tasks.get_task_info("t")
    assert info is not None
    assert info.current_state is A2AState.COMPLETED
    assert info.created_at == made.info.created_at
    assert info.completed_at is not None
    assert info.created_at < info.completed_at < info.created_at + timedelta(minutes=1)
    stated = [name_of(event) for event in await tasks.get_task_events("t")]
    assert stated == ["Starting task...", "Task completed: 42"]


async def test_clean_up_drops_what_ended_before_the_moment_and_nothing_else(
    tasks: TaskStateManager,
) -> None:
    for name in ("early", "exact", "late", "active"):
        await tasks.register_task(name, "c", "s")
    for name in ("early", "exact", "late"):
        await tasks.record_event(name, status("failed"))
    info = await tasks.get_task_info("exact")
    assert info is not None
    assert info.completed_at is not None
    far = info.completed_at.astimezone(timezone(timedelta(hours=-9)))
    assert await tasks.cleanup_old_tasks(timedelta(hours=1)) == 0
    assert await tasks.cleanup_old_tasks(far) == 1
    left = [name for name in ("early", "exact", "late", "active") if await tasks.task_exists(name)]
    assert left == ["exact", "late", "active"]
    assert await tasks.cleanup_old_tasks(timedelta(0)) == 2
    assert await tasks.cleanup_old_tasks(timedelta(0)) == 0
    assert await tasks.count_tasks() == TaskCounts(1, 0)
    assert await tasks.get_task_info("late") is None


async def test_reads_of_an_unknown_task_give_nothing(tasks: TaskStateManager) -> None:
    assert await tasks.get_task_info("t") is None
    assert await tasks.get_stream_id("t") is None
    assert await tasks.get_task_events("t") == []
    assert not await tasks.is_task_active("t")
    assert not await tasks.task_exists("t")
    assert not await tasks.update_stream_id("t", "s")
    assert await tasks.count_tasks() == TaskCounts(0, 0)


async def test_a_stream_is_named_anew_also_of_a_completed_task(tasks: TaskStateManager) -> None:
    await tasks.register_task("t", "c", "s")
    assert await tasks.update_stream_id("t", "second")
    await tasks.record_event("t", status("completed"))
    before = await tasks.get_task_info("t")
    assert await tasks.update_stream_id("t", "third")
    after = await tasks.get_task_info("t")
    assert before is not None
    assert after is not None
    assert (before.stream_id, after.stream_id) == ("second", "third")
    assert (before.events, before.completed_at) == (after.events, after.completed_at)


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_is_final(tasks: TaskStateManager, end: str) -> None:
    await tasks.register_task("t", "c", "s")
    for state in GOES_ON:
        await tasks.record_event("t", status(state))
        assert await tasks.is_task_active("t")
    await tasks.record_event("t", status(end))
    ended = await tasks.get_task_info("t")
    for event in (status("working"), status("failed"), chunk("x"), MESSAGE, TASK):
        error = await outcome(tasks.record_event("t", event), InvalidTransition)
        assert isinstance(error, InvalidTransition)
        assert (error.task_id, error.current) == ("t", end)
    again = await tasks.register_task("t", "other", "other")
    assert (again.created, again.info) == (False, ended)
    assert await tasks.get_task_info("t") == ended


async def test_an_end_needs_no_final_flag_and_the_flag_alone_ends_nothing(
    tasks: TaskStateManager,
) -> None:
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", {**status("working"), "final": True})
    assert await tasks.is_task_active("t")
    await tasks.record_event("t", {**status("completed"), "final": False})
    assert not await tasks.is_task_active("t")


async def test_artifacts_and_messages_leave_the_state_as_it_is(tasks: TaskStateManager) -> None:
    await tasks.register_task("t", "c", "s")
    kinds: list[EventKind] = []
    for event in (TASK, chunk("x"), MESSAGE, {**MESSAGE, "role": "user", "taskId": "t"}):
        kinds.append((await tasks.record_event("t", event)).kind)
        info = await tasks.get_task_info("t")
        assert info is not None
        assert info.current_state is A2AState.INPUT_REQUIRED
    assert kinds == ["task", "artifact-update", "message", "message"]


async def test_a_task_of_one_owner_is_none_of_anothers(store: RedisStateStore) -> None:
    ann, bob = TaskStateManager(store, owner="ann"), TaskStateManager(store, owner="b{o}b:*")
    for owner in (ann, bob):
        assert (await owner.register_task("1", "c", "s")).created
    await ann.record_event("1", status("completed"))
    assert await bob.is_task_active("1")
    assert await bob.get_task_events("1") == []
    assert await bob.cleanup_old_tasks(timedelta(0)) == 0
    assert await ann.count_tasks() == TaskCounts(0, 1)
    assert await bob.count_tasks() == TaskCounts(1, 0)
    assert await TaskStateManager(store).count_tasks() == TaskCounts(0, 0)


async def test_clean_up_takes_any_number(tasks: TaskStateManager) -> None:
    many = [f"t{n}" for n in range(250)]
    await asyncio.gather(*(tasks.register_task(name, "c", "s") for name in many))
    await asyncio.gather(*(tasks.record_event(name, status("completed")) for name in many))
    counted = await asyncio.gather(*(tasks.cleanup_old_tasks(timedelta(0)) for _ in range(3)))
    assert sum(counted) == 250
    assert await tasks.count_tasks() == TaskCounts(0, 0)


def test_it_needs_no_package_of_a2a() -> None:
    program = (
        "import sys, redis_state.integrations.embabel.task_state_manager\n"
        "print({'a2a', 'google.protobuf', 'penguiflow', 'arq'} & set(sys.modules))"
    )
    path = os.pathsep.join(filter(None, sys.path))
    ran = children.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.stdout == "set()\n"


async def test_tasks_are_counted_however_many_have_expired(
    tasks: TaskStateManager, store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.stores.a2a.tasks._TRIES", 2)
    await tasks.register_task("t", "c", "s")
    expiry = store.base.keys.a2a_books(manager_scope("")).expiry
    expired = [part for number in range(700) for part in (1, f"x{number}")]
    await ask(store.base.scripts, "ZADD", expiry, *expired)
    assert await tasks.count_tasks() == TaskCounts(1, 0)
    assert await ask(store.base.scripts, "ZCARD", expiry) == 1


async def test_a_task_does_not_end_in_the_future_because_another_was_registered_there(
    tasks: TaskStateManager, store: RedisStateStore
) -> None:
    # As registered before the server's clock was set back.
    scripts, books = store.base.scripts, store.base.keys.a2a_books(manager_scope(""))
    future = f"11{(await clock_ms(scripts) + 3_600_000) * 1000:026d}000"
    await tasks.register_task("t", "c", "s")
    await ask(scripts, "ZADD", books.index, 0, f"*|*|{future}other")
    await tasks.record_event("t", status("completed"))
    assert await tasks.cleanup_old_tasks(timedelta(0)) == 1
