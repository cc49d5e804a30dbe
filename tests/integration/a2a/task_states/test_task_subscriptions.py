"""Who subscribes to a task hears each event once, from where he was, or of the gap."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest

from redis_state import (
    CursorGap,
    RedisStateStore,
    Settings,
    TaskUnknown,
)
from redis_state.integrations.embabel.task_state_manager import (
    TaskEvent,
    TaskStateManager,
)
from tests.processes.a2a.keep_task_states import chunk, status
from tests.support.a2a.task_states import hear, names
from tests.support.servers.changes.rollback import rolling_back


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
