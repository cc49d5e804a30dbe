"""The task state manager: the seed's cases, and what the seed's own gets wrong."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from redis_state import (
    CorruptState,
    CursorGap,
    InvalidField,
    InvalidTransition,
    RedisStateStore,
    Settings,
    TaskUnknown,
)
from redis_state.integrations.embabel import task_events
from redis_state.integrations.embabel.task_state_manager import (
    A2AState,
    EventKind,
    TaskCounts,
    TaskEvent,
    TaskStateManager,
)
from redis_state.primitives.log import Log, Page
from redis_state.testing import eventually
from redis_state.transport.keys import a2a_keys, manager_scope
from tests.processes.a2a.keep_task_states import chunk, name_of, status
from tests.support.a2a.rows import write
from tests.support.processes import children
from tests.support.scripts.replies import ask, clock_ms, clock_passes, lives, outcome
from tests.support.servers.rollback import rolling_back

MESSAGE: dict[str, Any] = {"kind": "message", "messageId": "m", "role": "agent", "parts": []}
TASK: dict[str, Any] = {
    "kind": "task",
    "id": "t",
    "contextId": "c",
    "status": {"state": "input-required"},
}
ENDS = ["completed", "canceled", "failed", "rejected", "unknown"]
GOES_ON = ["submitted", "working", "input-required", "auth-required"]


@pytest.fixture
def tasks(store: RedisStateStore) -> TaskStateManager:
    return TaskStateManager(store)


async def hear(tasks: TaskStateManager, after: str | None = None, most: int = 0) -> list[TaskEvent]:
    heard: list[TaskEvent] = []
    async with asyncio.timeout(60), aclosing(tasks.subscribe("t", after=after)) as events:
        async for event in events:
            heard.append(event)
            if len(heard) == most:
                break
    return heard


def names(heard: list[TaskEvent]) -> list[str]:
    return [name_of(one.event) for one in heard]


# The seed's cases


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


# What the seed's gets wrong


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


async def test_nobody_needs_to_listen_for_an_event_to_be_recorded(
    tasks: TaskStateManager,
) -> None:
    await tasks.register_task("t", "c", "s")
    first = await hear_first(tasks)
    # Its subscriber is gone, and so is the stream that it had.
    await tasks.record_event("t", chunk("b"))
    await tasks.record_event("t", status("completed", "end"))
    assert names(await hear(tasks)) == ["a", "b", "end"]
    assert names(await hear(tasks, after=first.cursor)) == ["b", "end"]


async def hear_first(tasks: TaskStateManager) -> TaskEvent:
    async with aclosing(tasks.subscribe("t")) as events:
        first = asyncio.ensure_future(anext(events))
        await tasks.record_event("t", chunk("a"))
        return await first


async def test_who_comes_back_gets_what_he_missed_and_then_what_comes(
    tasks: TaskStateManager, settings: Settings
) -> None:
    await tasks.register_task("t", "c", "s")
    for n in range(3):
        await tasks.record_event("t", chunk(str(n)))
    (first,) = await hear(tasks, most=1)
    async with RedisStateStore(settings) as elsewhere:
        other = TaskStateManager(elsewhere)
        # On another instance, and through the seed's own steps.
        again = await other.register_task("t", "c", "new stream")
        assert not again.created
        assert await other.update_stream_id("t", "new stream")
        coming = asyncio.create_task(hear(other, after=first.cursor))
        known = asyncio.create_task(hear(other, after=again.info.cursor))
        await asyncio.sleep(0)
        await tasks.record_event("t", chunk("3"))
        await tasks.record_event("t", status("completed", "end"))
        assert names(await coming) == ["1", "2", "3", "end"]
        assert names(await known) == ["3", "end"]
    info = await tasks.get_task_info("t")
    assert info is not None
    assert len(info.events) == 5
    assert info.created_at == again.info.created_at


async def test_all_of_many_subscribers_hear_all(tasks: TaskStateManager) -> None:
    await tasks.register_task("t", "c", "same stream")
    listening = [asyncio.create_task(hear(tasks)) for _ in range(50)]
    for n in range(20):
        await tasks.record_event("t", chunk(str(n)))
    late = [asyncio.create_task(hear(tasks)) for _ in range(50)]
    await tasks.record_event("t", status("completed", "end"))
    wanted = [*map(str, range(20)), "end"]
    for one in await asyncio.gather(*listening, *late):
        assert names(one) == wanted


async def test_who_has_heard_the_end_hears_nothing_more(tasks: TaskStateManager) -> None:
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", chunk("a"))
    await tasks.record_event("t", status("canceled", "end"))
    first, last = await hear(tasks)
    assert last.ends_task
    assert not first.ends_task
    assert await hear(tasks, after=last.cursor) == []
    assert await hear(tasks, after=first.cursor) == [last]
    info = await tasks.get_task_info("t")
    assert info is not None
    assert await hear(tasks, after=info.cursor) == []


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


async def test_an_event_of_one_id_is_recorded_once_also_as_the_last(
    tasks: TaskStateManager,
) -> None:
    await tasks.register_task("t", "c", "s")
    for event, event_id in ((chunk("a"), "1"), (status("completed"), "2" * 500)):
        first = await tasks.record_event("t", event, event_id=event_id)
        assert await tasks.record_event("t", event, event_id=event_id) == first
    assert len(await tasks.get_task_events("t")) == 2


async def test_an_id_is_of_one_event_also_if_its_keys_come_in_another_order(
    tasks: TaskStateManager,
) -> None:
    await tasks.register_task("t", "c", "s")
    event = status("working")
    first = await tasks.record_event("t", event, event_id="e")
    turned = dict(reversed(event.items()))
    assert list(turned) != list(event)
    assert (await tasks.record_event("t", turned, event_id="e")).cursor == first.cursor
    with pytest.raises(InvalidField, match="event_id: another event"):
        await tasks.record_event("t", status("completed"), event_id="e")
    assert await tasks.is_task_active("t")
    assert len(await tasks.get_task_events("t")) == 1


# Retention


async def test_an_event_is_recognised_by_its_id_as_long_as_it_is_kept(
    settings: Settings,
) -> None:
    few = settings.model_copy(update={"max_updates_per_a2a_task": 3})
    async with RedisStateStore(few) as short:
        tasks = TaskStateManager(short)
        await tasks.register_task("t", "c", "s")
        first = await tasks.record_event("t", chunk("a"), event_id="e")
        for _ in range(2):
            await tasks.record_event("t", chunk("b"))
        assert (await tasks.record_event("t", chunk("a"), event_id="e")).cursor == first.cursor
        await tasks.record_event("t", chunk("b"))
        again = await tasks.record_event("t", chunk("a"), event_id="e")
        assert again.cursor != first.cursor


async def test_an_event_that_is_too_large_is_refused_and_not_recorded(
    store: RedisStateStore,
) -> None:
    tasks = TaskStateManager(store, max_event_bytes=1_000)
    await tasks.register_task("t", "c", "s")
    with pytest.raises(InvalidField, match=r"event: 1.* bytes, 1000 are allowed") as refused:
        await tasks.record_event("t", chunk("s3cr3t" * 200))
    assert "s3cr3t" not in str(refused.value)
    assert await tasks.get_task_events("t") == []
    await tasks.record_event("t", chunk("x" * 500))
    assert len(await tasks.get_task_events("t")) == 1


async def test_an_event_that_was_recorded_is_told_as_everybody_reads_it(
    tasks: TaskStateManager,
) -> None:
    await tasks.register_task("t", "c", "s")
    event = chunk("a") | {"metadata": {"tags": {1}, "much": float("inf")}}
    reported = await tasks.record_event("t", event)
    assert reported.event == {**chunk("a"), "metadata": {"tags": [1], "much": "Infinity"}}
    assert [reported.event] == await tasks.get_task_events("t")
    reported.event["metadata"]["tags"].clear()
    assert event["metadata"]["tags"] == {1}


async def test_only_the_newest_events_are_kept_and_a_reader_is_told(settings: Settings) -> None:
    few = settings.model_copy(update={"max_updates_per_a2a_task": 10})
    async with RedisStateStore(few) as store:
        tasks = TaskStateManager(store)
        await tasks.register_task("t", "c", "s")
        first = await tasks.record_event("t", chunk("0"))
        for n in range(1, 30):
            await tasks.record_event("t", chunk(str(n)))
        info = await tasks.get_task_info("t")
        assert info is not None
        assert 10 <= len(info.events) <= 11
        assert info.dropped == 30 - len(info.events)
        kept = [name_of(event) for event in info.events]
        assert kept == [str(n) for n in range(info.dropped, 30)]
        for after in (None, first.cursor):
            gap = await outcome(hear(tasks, after=after), CursorGap)
            assert isinstance(gap, CursorGap)
            assert gap.reason == "trimmed"
            assert gap.missed == info.dropped - (after is not None)
            assert names(await hear(tasks, gap.resume_after, most=len(kept))) == kept


async def test_a_task_nobody_ends_is_forgotten_and_its_waiting_subscriber_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_events, "_LOOK_AGAIN_S", 0.05)
    short = settings.model_copy(update={"active_task_ttl": timedelta(milliseconds=200)})
    async with RedisStateStore(short) as store:
        tasks = TaskStateManager(store)
        await tasks.register_task("t", "c", "s")
        with pytest.raises(TaskUnknown):
            await hear(tasks)
        assert await tasks.count_tasks() == TaskCounts(0, 0)
        assert (await tasks.register_task("t", "c", "s")).created


async def test_a_subscriber_of_a_task_that_is_dropped_before_he_reads_is_told(
    tasks: TaskStateManager,
) -> None:
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", chunk("a"))
    (first,) = await hear(tasks, most=1)
    await tasks.record_event("t", status("completed"))
    assert await tasks.cleanup_old_tasks(timedelta(0)) == 1
    with pytest.raises(TaskUnknown, match="'t'"):
        await hear(tasks, after=first.cursor)
    # Another task of this id is not the one that he read.
    await tasks.register_task("t", "c", "s")
    await tasks.record_event("t", chunk("other"))
    with pytest.raises(CursorGap) as gap:
        await hear(tasks, after=first.cursor)
    assert gap.value.reason == "foreign"


async def test_nothing_of_a_task_is_left_when_its_time_is_over(settings: Settings) -> None:
    short = settings.model_copy(update={"finished_task_ttl": timedelta(milliseconds=50)})
    async with RedisStateStore(short) as store:
        tasks, scripts = TaskStateManager(store), store.base.scripts
        await tasks.register_task("t", "c", "s")
        await tasks.record_event("t", chunk("a"))
        await tasks.record_event("t", status("completed"))
        await clock_passes(scripts, await clock_ms(scripts) + 50)
        assert not await tasks.task_exists("t")
        assert await tasks.count_tasks() == TaskCounts(0, 0)
        keys = a2a_keys(store.base.keys, manager_scope(""), "t")
        # The events live half as long again, for a reader that comes a little later.
        await clock_passes(scripts, await clock_ms(scripts) + 25)
        books = (keys.books.index, keys.books.places, keys.books.expiry)
        assert set(await lives(scripts, keys.events.rows, keys.events.ids, *books)) == {-2}


async def test_clean_up_takes_any_number(tasks: TaskStateManager) -> None:
    many = [f"t{n}" for n in range(250)]
    await asyncio.gather(*(tasks.register_task(name, "c", "s") for name in many))
    await asyncio.gather(*(tasks.record_event(name, status("completed")) for name in many))
    counted = await asyncio.gather(*(tasks.cleanup_old_tasks(timedelta(0)) for _ in range(3)))
    assert sum(counted) == 250
    assert await tasks.count_tasks() == TaskCounts(0, 0)


# What an event may be


class Update(BaseModel):
    """An event as the models of an SDK write it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    task_id: str
    status: dict[str, Any]
    metadata: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("event", "kind", "state"),
    [
        ({"statusUpdate": status("TASK_STATE_INPUT_REQUIRED")}, "status-update", "input-required"),
        ({"status_update": status("CANCELLED"), "task": None}, "status-update", "canceled"),
        ({"task": {**TASK, "status": {"state": "TASK_STATE_REJECTED"}}}, "task", "rejected"),
        ({"artifactUpdate": chunk("a")}, "artifact-update", None),
        ({"message": {"role": "ROLE_AGENT", "messageId": "m"}}, "message", None),
        (status("PENDING"), "status-update", "submitted"),
        (status("auth_required"), "status-update", "auth-required"),
        ({"status": {"state": A2AState.FAILED}}, "status-update", "failed"),
        (Update(task_id="t", status={"state": "completed"}), "status-update", "completed"),
    ],
)
async def test_every_shape_that_a2a_gave_events_is_understood(
    tasks: TaskStateManager, event: Any, kind: str, state: str | None
) -> None:
    await tasks.register_task("t", "c", "s")
    recorded = await tasks.record_event("t", event)
    assert (recorded.kind, recorded.state) == (kind, state)
    if isinstance(event, dict):
        assert await tasks.get_task_events("t") == [event]
    else:
        assert await tasks.get_task_events("t") == [{"taskId": "t", "status": event.status}]
    if recorded.ends_task:
        assert await hear(tasks) == [recorded]


@pytest.mark.parametrize("name", ["", "a{b}:*?[c] \ud800", "é" * 300, "\0\n"])
async def test_ids_may_be_any_text_and_events_any_size(tasks: TaskStateManager, name: str) -> None:
    await tasks.register_task(name, name, name)
    big = chunk(name + "x" * 2_000_000)
    await tasks.record_event(name, big, event_id=name or None)
    await tasks.record_event(name, status("completed", name, task_id=name))
    info = await tasks.get_task_info(name)
    assert info is not None
    assert (info.task_id, info.context_id, info.stream_id) == (name, name, name)
    assert name_of(info.events[0]) == name_of(big)
    assert await tasks.get_stream_id(name) == name
    assert await tasks.cleanup_old_tasks(timedelta(0)) == 1
    assert not await tasks.task_exists(name)


BAD: list[tuple[str, Any]] = [
    ("event", None),
    ("event", "text"),
    ("event", {}),
    ("event", {"kind": "status-update", "status": "completed"}),
    ("event", {"task": {}, "message": {}}),
    ("event", status("working", task_id="secret")),
    ("event", {**TASK, "id": "secret"}),
    ("event.taskId", {**chunk("a"), "taskId": 5}),
    ("event.id", {**TASK, "id": ["t"]}),
    ("status.state", status("secret")),
    ("status.state", {"status": {}}),
    ("status.state", {"status": {"state": 3}}),
    ("status.state", status("TASK_STATE_UNSPECIFIED")),
]


@pytest.mark.parametrize(("field", "event"), BAD)
async def test_what_is_no_event_of_the_task_is_refused_by_name(
    tasks: TaskStateManager, field: str, event: Any
) -> None:
    await tasks.register_task("t", "c", "s")
    with pytest.raises(InvalidField) as refused:
        await tasks.record_event("t", event)
    assert refused.value.field == field
    assert "secret" not in str(refused.value)
    assert await tasks.get_task_events("t") == []


async def test_bad_input_is_named(tasks: TaskStateManager, store: RedisStateStore) -> None:
    nothing: Any = None
    moment: Any = "yesterday"
    for field, call in [
        ("task_id", tasks.register_task(nothing, "c", "s")),
        ("context_id", tasks.register_task("t", nothing, "s")),
        ("stream_id", tasks.register_task("t", "c", nothing)),
        ("task_id", tasks.record_event(nothing, chunk("a"))),
        ("event_id", tasks.record_event("t", chunk("a"), event_id="")),
        ("task_id", tasks.get_task_info(nothing)),
        ("task_id", tasks.task_exists(nothing)),
        ("new_stream_id", tasks.update_stream_id("t", nothing)),
        ("older_than", tasks.cleanup_old_tasks(moment)),
        ("older_than", tasks.cleanup_old_tasks(datetime(2026, 1, 1))),  # noqa: DTZ001 - that is it
    ]:
        error = await outcome(call, InvalidField)
        assert isinstance(error, InvalidField)
        assert error.field == field
    with pytest.raises(InvalidField, match="owner"):
        TaskStateManager(store, owner=nothing)


async def test_an_unknown_task_is_told_as_such(tasks: TaskStateManager) -> None:
    for event in (chunk("a"), status("completed")):
        with pytest.raises(TaskUnknown) as unknown:
            await tasks.record_event("t", event)
        assert unknown.value.task_id == "t"
    with pytest.raises(TaskUnknown):
        await hear(tasks)
    assert not await tasks.task_exists("t")


@pytest.mark.parametrize("cursor", ["", "x", "7-1", "2-1", "99-99999999999999"])
async def test_a_cursor_that_is_none_of_the_tasks_is_a_gap(
    tasks: TaskStateManager, cursor: str
) -> None:
    await tasks.register_task("t", "c", "s")
    for n in range(3):
        await tasks.record_event("t", chunk(str(n)))
    await tasks.record_event("t", status("completed"))
    with pytest.raises(CursorGap):
        await hear(tasks, after=cursor)


# Damage


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


async def test_events_of_the_a2a_sdk_are_understood(tasks: TaskStateManager) -> None:
    types = pytest.importorskip("a2a.types", reason="needs the A2A SDK")
    if not hasattr(types.Task, "DESCRIPTOR"):
        pytest.skip("a2a-sdk before 1.0 has models")
    working = types.TaskStatus(state=types.TaskState.TASK_STATE_WORKING)
    done = types.TaskStatus(state=types.TaskState.TASK_STATE_COMPLETED)
    artifact = types.Artifact(artifact_id="a", parts=[types.Part(text="x")])
    await tasks.register_task("t", "c", "s")
    for event, kind in [
        (types.Task(id="t", context_id="c", status=working), EventKind.TASK),
        (types.TaskStatusUpdateEvent(task_id="t", status=working), EventKind.STATUS),
        (types.TaskArtifactUpdateEvent(task_id="t", artifact=artifact), EventKind.ARTIFACT),
        (types.Message(message_id="m", role=types.Role.ROLE_AGENT), EventKind.MESSAGE),
        (
            types.StreamResponse(
                status_update=types.TaskStatusUpdateEvent(task_id="t", status=done)
            ),
            EventKind.STATUS,
        ),
    ]:
        assert (await tasks.record_event("t", event)).kind is kind
    heard = await hear(tasks)
    assert [one.state for one in heard] == ["working", "working", None, None, "completed"]
    unset = types.TaskStatusUpdateEvent(task_id="t", status=types.TaskStatus())
    with pytest.raises(InvalidField):
        await tasks.record_event("t", unset)


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


async def test_a_subscriber_is_told_that_the_server_lost_events_and_goes_on_with_the_new() -> None:
    async with (
        rolling_back() as server,
        RedisStateStore.from_url(server.url) as store,
    ):
        tasks = TaskStateManager(store)
        await tasks.register_task("t", "c", "s")
        await tasks.record_event("t", chunk("a"))
        await server.mark()
        for name in ("lost 1", "lost 2"):
            await tasks.record_event("t", chunk(name))
        seen = await hear(tasks, most=3)
        await server.go_back()
        for name in ("b", "c"):
            await tasks.record_event("t", chunk(name))
        for ahead in seen[1:]:
            with pytest.raises(CursorGap) as gap:
                await hear(tasks, after=ahead.cursor)
            assert gap.value.reason == "rewound"
            assert names(await hear(tasks, after=gap.value.resume_after, most=2)) == ["b", "c"]


async def test_a_cursor_of_another_task_is_foreign_whenever_its_events_came(
    tasks: TaskStateManager,
) -> None:
    others: list[str] = []
    for task_id in ("t", "u"):
        await tasks.register_task(task_id, "c", "s")
    for name in "abc":
        others.append((await tasks.record_event("u", chunk(name))).cursor)
        await tasks.record_event("t", chunk(name))
    info = await tasks.get_task_info("u")
    assert info is not None
    assert info.cursor == others[-1]
    for cursor in others:
        with pytest.raises(CursorGap) as gap:
            await hear(tasks, after=cursor)
        assert gap.value.reason == "foreign"
        assert names(await hear(tasks, after=gap.value.resume_after, most=3)) == ["a", "b", "c"]


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
