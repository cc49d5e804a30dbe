from __future__ import annotations

import asyncio
import math
from types import MappingProxyType
from typing import Any

import pytest

from redis_state import InvalidField, RedisStateStore, Settings
from redis_state.models import PlannerEvent
from tests.support.samples import STORED_STRANGE, changed, planner_event, strange


async def test_every_field_of_a_planner_event_comes_back(store: RedisStateStore) -> None:
    event = PlannerEvent("step", 12.5, 3, "thought", "node", 1.25, 0, "", {"a": [None]})
    await store.save_planner_event("trace", event)
    assert await store.list_planner_events("trace") == [event]
    assert await store.list_planner_events("unknown") == []


async def test_planner_events_keep_their_order_whatever_their_time(store: RedisStateStore) -> None:
    events = [planner_event(float(ts)) for ts in (5, 1, 9, 2)]
    await asyncio.gather(*(store.save_planner_event("trace", event) for event in events))
    assert await store.list_planner_events("trace") == events


async def test_equal_planner_events_are_all_kept(store: RedisStateStore) -> None:
    for _ in range(3):
        await store.save_planner_event("trace", planner_event())
    assert await store.list_planner_events("trace") == [planner_event()] * 3


async def test_numbers_that_json_does_not_have_come_back_as_numbers(
    store: RedisStateStore,
) -> None:
    await store.save_planner_event("trace", planner_event(math.nan, latency_ms=math.inf))
    (loaded,) = await store.list_planner_events("trace")
    assert math.isnan(loaded.ts)
    assert loaded.latency_ms == math.inf


@pytest.mark.parametrize(
    ("field", "value"), [("ts", "now"), ("latency_ms", "long"), ("extra", None), ("extra", [1])]
)
async def test_a_field_of_another_kind_is_refused_by_name(
    store: RedisStateStore, field: str, value: Any
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.save_planner_event("trace", planner_event(**{field: value}))
    assert caught.value.field == field


async def test_extra_fields_may_hold_anything(store: RedisStateStore) -> None:
    await store.save_planner_event("trace", planner_event(extra=MappingProxyType(strange())))
    (loaded,) = await store.list_planner_events("trace")
    assert {**loaded.extra, "itself": "<cycle>"} == STORED_STRANGE


async def test_a_trace_keeps_so_many_of_its_newest_planner_events(settings: Settings) -> None:
    async with changed(settings, max_planner_events_per_trace=5) as store:
        events = [planner_event(float(number)) for number in range(20)]
        for event in events:
            await store.save_planner_event("trace", event)
        assert await store.list_planner_events("trace") == events[-5:]
