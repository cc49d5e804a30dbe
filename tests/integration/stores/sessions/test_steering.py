from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from redis_state import CursorGap, RedisStateStore, Settings
from redis_state.models import SteeringEvent, SteeringEventType, sanitize_payload
from redis_state.store import Entry
from tests.support.samples import changed, steering, strange


async def test_a_payload_is_stored_within_the_limits(store: RedisStateStore) -> None:
    payload: dict[str, Any] = {
        "long": "x" * 5000,
        "list": list(range(60)),
        "deep": {"a": {"b": {"c": {"d": {"e": {"f": 1}}}}}},
        "object": object,
        **{f"key{number}": number for number in range(70)},
    }
    event = steering("e", payload)
    await store.save_steering(event)
    (loaded,) = await store.list_steering("session")
    assert loaded.payload == sanitize_payload(payload)
    assert loaded.payload["long"] == "x" * 4096
    assert loaded.payload["list"][50:] == ["<truncated>"]
    assert event.payload is not payload or payload["long"] == "x" * 5000
    assert event.payload["long"] == "x" * 5000, "the caller's event stays as it is"


async def test_what_json_cannot_hold_never_raises(store: RedisStateStore) -> None:
    payload = {key: value for key, value in strange().items() if isinstance(key, str)}
    await store.save_steering(steering("e", payload))
    (loaded,) = await store.list_steering("session")
    assert loaded.payload["set"] == [1, 2, 3]
    assert loaded.payload["object"] == "<Opaque>"


async def test_a_payload_against_the_rules_of_its_type_is_stored(store: RedisStateStore) -> None:
    event = steering("e", {"not": "text"})
    await store.save_steering(event)
    assert await store.list_steering("session") == [event]


@pytest.mark.parametrize("kind", list(SteeringEventType))
async def test_every_field_of_an_event_comes_back_rebuilt(
    store: RedisStateStore, kind: SteeringEventType
) -> None:
    event = steering("e", {}, event_type=kind, trace_id="trace", source="agent")
    await store.save_steering(event)
    (loaded,) = await store.list_steering("session")
    assert loaded == event
    assert type(loaded) is SteeringEvent
    assert loaded.event_type is kind


async def test_an_event_saved_again_stands_once(store: RedisStateStore) -> None:
    for text in ("first", "second"):
        await store.save_steering(steering("same", {"text": text}))
    assert [each.payload for each in await store.list_steering("session")] == [{"text": "first"}]


async def test_cursor_filter_and_limit_are_those_of_updates(store: RedisStateStore) -> None:
    events = [steering(f"e{number}", task_id=f"t{number % 2}") for number in range(8)]
    await asyncio.gather(*(store.save_steering(event) for event in events))
    assert await store.list_steering("session") == events
    assert await store.list_steering("session", task_id="t1") == events[1::2]
    assert await store.list_steering("session", task_id="t1", since_id="e4") == events[5::2]
    assert await store.list_steering("session", limit=3) == events[-3:]
    assert await store.list_steering("session", since_id="unknown") == events
    page = await store.read_steering("session", limit=3)
    assert page.values == events[:3]
    rest = await store.read_steering("session", after=page.cursor, task_id="t0")
    assert rest.values == [events[4], events[6]]
    assert await store.steering_cursor("session", "e2") == page.cursor
    assert await store.steering_cursor("session") == rest.cursor


async def test_updates_and_steering_of_a_session_are_apart(store: RedisStateStore) -> None:
    await store.save_steering(steering("e"))
    assert await store.list_updates("session") == []


async def test_a_watcher_of_one_task_gets_its_steering_live(store: RedisStateStore) -> None:
    await store.save_steering(steering("before"))
    entries: AsyncGenerator[Entry[SteeringEvent], None] = store.watch_steering(
        "session", task_id="task"
    )
    async with aclosing(entries):
        assert (await anext(entries)).value.event_id == "before"
        waiting = asyncio.ensure_future(anext(entries))
        await store.save_steering(steering("foreign", task_id="other"))
        await store.save_steering(steering("mine"))
        assert (await waiting).value.event_id == "mine"


async def test_a_session_keeps_so_many_of_its_newest_events(settings: Settings) -> None:
    async with changed(settings, max_steering_events_per_session=5) as store:
        events = [steering(f"e{number}") for number in range(20)]
        for event in events:
            await store.save_steering(event)
        assert await store.list_steering("session") == events[-5:]
        with pytest.raises(CursorGap):
            await store.read_steering("session", after="1-5")


async def test_one_event_may_be_sent_to_several_tasks_and_stands_once_for_each(
    store: RedisStateStore,
) -> None:
    def sent(task_id: str, event_id: str = "e") -> SteeringEvent:
        return steering(event_id).model_copy(update={"task_id": task_id})

    for event_id in ("e", "long " * 20):
        for task_id in ("a", "b", "", "b", "a"):
            await store.save_steering(sent(task_id, event_id))
    await store.save_steering(sent("b", "later"))
    events = await store.list_steering("session")
    assert [(event.event_id[:4], event.task_id) for event in events] == [
        *(("e", "a"), ("e", "b"), ("e", "")),
        *(("long", "a"), ("long", "b"), ("long", "")),
        ("late", "b"),
    ]
    for task_id, expected in (("a", ["long"]), ("b", ["long", "late"]), ("", ["long"])):
        after = await store.list_steering("session", task_id=task_id, since_id="e")
        assert [event.event_id[:4] for event in after] == expected
        assert {event.task_id for event in after} == {task_id}
    async with aclosing(store.watch_steering("session", task_id="b")) as entries:
        heard = (await anext(entries)).value
        assert (heard.event_id, heard.task_id) == ("e", "b")


async def test_an_event_that_many_processes_send_to_two_tasks_at_once_reaches_each_once(
    store: RedisStateStore, settings: Settings
) -> None:
    others = [RedisStateStore(settings) for _ in range(4)]
    await asyncio.gather(
        *(
            other.save_steering(steering("e").model_copy(update={"task_id": task_id}))
            for other in others
            for task_id in ("a", "b", "a", "b")
        )
    )
    assert sorted(event.task_id for event in await store.list_steering("session")) == ["a", "b"]
    for other in others:
        await other.aclose()
