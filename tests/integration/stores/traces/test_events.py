from __future__ import annotations

import asyncio
import math
import random
from types import MappingProxyType
from typing import Any, cast

import pytest

from redis_state import InvalidField, RedisStateStore, Settings
from redis_state.models import StoredEvent
from tests.support.samples import changed, event


async def test_events_of_one_time_keep_the_order_of_their_saves(store: RedisStateStore) -> None:
    saved = [event(2.0, node_name=name) for name in "cab"] + [event(1.0, node_name="z")]
    for each in saved:
        await store.save_event(each)
    assert [each.node_name for each in await store.load_history("trace")] == ["z", "c", "a", "b"]


@pytest.mark.parametrize(
    "ts", [0.1 + 0.2, 1702857600.123456, -1.5, 5e-324, 1.7976931348623157e308, math.inf, -math.inf]
)
async def test_a_time_comes_back_as_the_exact_double(store: RedisStateStore, ts: float) -> None:
    await store.save_event(event(ts))
    assert [each.ts for each in await store.load_history("trace")] == [ts]


async def test_a_time_that_is_no_number_comes_last_and_upsets_no_order(
    store: RedisStateStore,
) -> None:
    times = [3.0, math.nan, 1.0, math.inf, 2.0]
    await store.save_events([event(ts) for ts in times])
    loaded = [each.ts for each in await store.load_history("trace")]
    assert loaded[:4] == [1.0, 2.0, 3.0, math.inf]
    assert math.isnan(loaded[4])


async def test_a_whole_number_is_a_time_and_the_same_as_its_float(store: RedisStateStore) -> None:
    await store.save_event(event(7))
    await store.save_event(event(7.0))
    (loaded,) = await store.load_history("trace")
    assert loaded.ts == 7.0
    assert isinstance(loaded.ts, float)


@pytest.mark.parametrize("ts", ["1.0", None, 10**400, [1]])
async def test_a_time_of_another_kind_is_refused_by_name(store: RedisStateStore, ts: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.save_event(event(ts))
    assert caught.value.field == "ts"


@pytest.mark.parametrize("payload", [[1], "text", 5])
async def test_a_payload_that_is_no_mapping_is_refused_by_name(
    store: RedisStateStore, payload: Any
) -> None:
    with pytest.raises(InvalidField) as caught:
        await store.save_event(event(payload=payload))
    assert caught.value.field == "payload"


async def test_any_mapping_is_a_payload_and_comes_back_as_a_dict(store: RedisStateStore) -> None:
    await store.save_event(event(payload=MappingProxyType({"a": {"b": 1}})))
    (loaded,) = await store.load_history("trace")
    assert type(cast("object", loaded.payload)) is dict
    assert loaded.payload == {"a": {"b": 1}}


class _Broken(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


async def test_a_mapping_that_cannot_be_read_is_stored_as_its_nearest_form(
    store: RedisStateStore,
) -> None:
    await store.save_event(event(payload=_Broken(a=1)))
    (loaded,) = await store.load_history("trace")
    assert loaded.payload == {"value": "<_Broken>"}


async def test_the_order_of_a_payloads_keys_makes_no_other_event(store: RedisStateStore) -> None:
    await store.save_event(event(payload={"a": 1, "b": [{"c": 2, "d": 3}]}))
    await store.save_event(event(payload={"b": [{"d": 3, "c": 2}], "a": 1}))
    assert len(await store.load_history("trace")) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"ts": 2.0},
        {"kind": "node_error"},
        {"node_name": None},
        {"node_id": ""},
        {"payload": {"a": None}},
    ],
)
async def test_events_that_differ_anywhere_are_both_kept(
    store: RedisStateStore, other: dict[str, Any]
) -> None:
    await store.save_event(event())
    await store.save_event(event(**other))
    assert len(await store.load_history("trace")) == 2


async def test_events_without_a_trace_are_read_as_global(store: RedisStateStore) -> None:
    saved = event(trace_id=None)
    await store.save_event(saved)
    assert await store.load_history("__global__") == [saved]
    assert await store.load_history(None) == [saved]
    assert (await store.load_history("__global__"))[0].trace_id is None


async def test_a_stored_event_shares_nothing_with_the_callers(store: RedisStateStore) -> None:
    payload = {"list": [1]}
    saved = event(payload=payload)
    await store.save_event(saved)
    payload["list"].append(2)
    (first,) = await store.load_history("trace")
    assert first.payload == {"list": [1]}
    assert isinstance(first.payload, dict)
    first.payload["list"].append(3)
    (second,) = await store.load_history("trace")
    assert second.payload == {"list": [1]}


async def test_a_bulk_of_many_traces_keeps_each_traces_order(store: RedisStateStore) -> None:
    events = [event(1.0, trace_id=f"t{number % 7}", node_id=str(number)) for number in range(700)]
    random.Random(1).shuffle(events)
    await store.save_events(events)
    for trace in range(7):
        trace_id = f"t{trace}"
        expected = [each for each in events if each.trace_id == trace_id]
        assert await store.load_history(trace_id) == expected


async def test_a_bulk_is_the_same_as_single_saves(store: RedisStateStore) -> None:
    events = [event(float(number % 3), node_id=str(number)) for number in range(10)]
    await store.save_event(events[4])
    await store.save_events(iter(events))
    await store.save_events([])
    expected = sorted([events[4], *events[:4], *events[5:]], key=lambda each: each.ts)
    assert await store.load_history("trace") == expected


async def test_a_bulk_with_one_bad_event_saves_none(store: RedisStateStore) -> None:
    with pytest.raises(InvalidField):
        await store.save_events([event(), event(trace_id="other"), event("bad")])
    with pytest.raises(InvalidField):
        await store.save_events([event(), event(trace_id=5)])
    assert await store.load_history("trace") == []


async def test_unawaited_events_keep_the_order_of_the_calls(store: RedisStateStore) -> None:
    events = [event(1.0, node_id=str(number)) for number in range(100)]
    await asyncio.gather(*(asyncio.create_task(store.save_event(each)) for each in events))
    assert await store.load_history("trace") == events


async def test_a_trace_keeps_so_many_of_its_newest_events(settings: Settings) -> None:
    async with changed(settings, max_events_per_trace=10) as store:
        events = [event(float(number)) for number in range(100)]
        await store.save_events(events)
        assert await store.load_history("trace") == events[-10:]
        # An event that was dropped is no longer known: saved again, it is new.
        await store.save_event(events[0])
        assert await store.load_history("trace") == [events[0], *events[-9:]]


async def test_an_event_is_built_from_a_hosts_flow_event(store: RedisStateStore) -> None:
    class FlowEvent:
        trace_id, ts, event_type, node_name, node_id = "trace", 1.5, "node_start", "n", "n-1"

        def to_payload(self) -> dict[str, Any]:
            return {"attempt": 1}

    await store.save_event(StoredEvent.from_flow_event(FlowEvent()))
    (loaded,) = await store.load_history("trace")
    assert loaded == StoredEvent("trace", 1.5, "node_start", "n", "n-1", {"attempt": 1})
