"""An event of one id is recorded once while it is kept, and events are kept for so long."""

from __future__ import annotations

from datetime import timedelta

import pytest

from redis_state import (
    CursorGap,
    InvalidField,
    RedisStateStore,
    Settings,
    TaskUnknown,
)
from redis_state.integrations.embabel import task_events
from redis_state.integrations.embabel.task_state_manager import (
    TaskCounts,
    TaskStateManager,
)
from redis_state.transport.keys import a2a_keys, manager_scope
from tests.processes.a2a.keep_task_states import chunk, name_of, status
from tests.support.a2a.task_states import hear, names
from tests.support.scripts.replies import clock_ms, clock_passes, lives, outcome


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
    monkeypatch.setattr(task_events, "_CHECK_AGAIN_S", 0.05)
    short = settings.model_copy(update={"active_task_ttl": timedelta(milliseconds=200)})
    async with RedisStateStore(short) as store:
        tasks = TaskStateManager(store)
        await tasks.register_task("t", "c", "s")
        with pytest.raises(TaskUnknown):
            await hear(tasks)
        assert await tasks.count_tasks() == TaskCounts(0, 0)
        assert (await tasks.register_task("t", "c", "s")).created


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
