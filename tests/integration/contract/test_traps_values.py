"""What hosts put into a state store and what must come back, with both sets of classes.

| trap | test |
| --- | --- |
| values that JSON lacks, in events, results, pauses, observations, ... | `..._nearest_form` |
| the same in steering, which is also limited | `..._in_steering_raises_nothing` |
| a set comes back in a settled order | `..._a_set_...` |
| falsy values are values, `{}` is not "missing" | `..._falsy_...`, `..._empty_...` |
| what is missing is None, or an empty list | `..._not_there_...` |
| stored and returned values share nothing with the caller's | `..._shares_nothing...` |
| a payload is a real dict, kinds and models are rebuilt | `..._own_classes...` |
| times keep their instant and awareness, ``ts`` its exact double | `..._time...` |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, cast

import pytest

from redis_state import Settings
from tests.support.hosts import KINDS, Host, open_host
from tests.support.samples import STORED_STRANGE, strange

Surface = Callable[[Host, Any], Awaitable[Any]]


async def _event_payload(host: Host, value: Any) -> Any:
    await host.store.save_event(host.event(payload={"value": value}))
    (found,) = await host.store.load_history("trace")
    payload: Any = found.payload
    assert type(payload) is dict
    return cast("dict[str, Any]", payload)["value"]


async def _update_content(host: Host, value: Any) -> Any:
    update = host.update("u").model_copy(update={"content": value})
    await host.store.save_update(update)
    (found,) = await host.store.list_updates("session")
    return found.content


async def _task_result(host: Host, value: Any) -> Any:
    await host.store.save_task(host.task(result=value))
    (found,) = await host.store.list_tasks("session")
    return found.result


async def _task_progress(host: Host, value: Any) -> Any:
    await host.store.save_task(host.task(progress={"value": value}))
    (found,) = await host.store.list_tasks("session")
    return found.progress["value"]


async def _snapshot(host: Host, value: Any) -> Any:
    task = host.task()
    task.context_snapshot.llm_context["value"] = value
    await host.store.save_task(task)
    (found,) = await host.store.list_tasks("session")
    return found.context_snapshot.llm_context["value"]


async def _pause_payload(host: Host, value: Any) -> Any:
    pause = {"trajectory": {}, "reason": "r", "payload": {"value": value}, "tool_context": None}
    await host.store.save_planner_state("token", pause)
    found = await host.store.load_planner_state("token")
    assert (found["trajectory"], found["tool_context"]) == ({}, None)
    return found["payload"]["value"]


async def _pause_tool_context(host: Host, value: Any) -> Any:
    await host.store.save_planner_state("token", {"tool_context": {"a": 1, "value": value}})
    found = await host.store.load_planner_state("token")
    assert found["tool_context"]["a"] == 1
    return found["tool_context"]["value"]


async def _memory(host: Host, value: Any) -> Any:
    await host.store.save_memory_state("key", {"value": value})
    return (await host.store.load_memory_state("key"))["value"]


async def _trajectory(host: Host, part: str, value: Any) -> Any:
    trajectory = host.types.Trajectory(query="q", **{part: {"value": value}})
    await host.store.save_trajectory("trace", "session", trajectory)
    found = await host.store.get_trajectory("trace", "session")
    return getattr(found, part)["value"]


async def _trajectory_metadata(host: Host, value: Any) -> Any:
    return await _trajectory(host, "metadata", value)


async def _trajectory_artifacts(host: Host, value: Any) -> Any:
    return await _trajectory(host, "artifacts", value)


async def _observation(host: Host, value: Any) -> Any:
    action: dict[str, Any] = {"thought": "t", "next_node": "n", "args": {}}
    content: dict[str, Any] = {
        "query": "q",
        "steps": [{"action": action, "observation": {"value": value}}],
    }
    trajectory = host.types.Trajectory.from_serialised(content)
    await host.store.save_trajectory("trace", "session", trajectory)
    found = await host.store.get_trajectory("trace", "session")
    return found.steps[0].observation["value"]


async def _planner_extra(host: Host, value: Any) -> Any:
    await host.store.save_planner_event("trace", host.planner_event(extra={"value": value}))
    (found,) = await host.store.list_planner_events("trace")
    return found.extra["value"]


async def _binding_metadata(host: Host, value: Any) -> Any:
    await host.store.save_remote_binding(host.binding(metadata={"value": value}))
    (found,) = await host.store.list_bindings(router_session_id="session")
    return found.metadata["value"]


async def _artifact_meta(host: Host, value: Any) -> Any:
    ref = await host.store.artifact_store.put_bytes(b"x", meta={"value": value})
    return (await host.store.artifact_store.get_ref(ref.id)).source["value"]


SURFACES = [
    pytest.param(surface, id=surface.__name__.strip("_"))
    for surface in (
        _event_payload,
        _update_content,
        _task_result,
        _task_progress,
        _snapshot,
        _pause_payload,
        _pause_tool_context,
        _memory,
        _trajectory_metadata,
        _trajectory_artifacts,
        _observation,
        _planner_extra,
        _binding_metadata,
        _artifact_meta,
    )
]
MAPPINGS: list[Any] = [OrderedDict(a=1), MappingProxyType({"a": 1})]
FALSY: list[Any] = [0, 0.0, "", False, None, [], {}, [None], {"": {}}, [[], {}]]


@pytest.mark.parametrize("surface", SURFACES)
async def test_what_json_lacks_is_stored_as_its_nearest_form(host: Host, surface: Surface) -> None:
    found = await surface(host, strange())
    # Where a value is held by a model, a cycle in it may be cut a turn later.
    cycle = found.pop("itself")
    assert cycle == "<cycle>" or cycle["itself"] == "<cycle>"
    assert found == {name: form for name, form in STORED_STRANGE.items() if name != "itself"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surface", SURFACES)
async def test_falsy_and_empty_values_come_back_as_they_are(
    beside: Callable[[str], Settings], kind: str, surface: Surface
) -> None:
    for number, value in enumerate(FALSY):
        # Each in a namespace of its own: a surface reads what it has written alone.
        async with open_host(kind, beside(str(number))) as host:
            found = await surface(host, value)
        assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_set_comes_back_in_a_settled_order(host: Host, surface: Surface) -> None:
    assert await surface(host, {"c", "a", "b"}) == ["a", "b", "c"]


async def test_what_json_lacks_in_steering_raises_nothing(host: Host) -> None:
    values = {"object": object(), "set": {1, 2}, "bytes": b"\xff", "tuple": (1, 2)}
    event = host.steering("e", values)
    await host.store.save_steering(event)
    (found,) = await host.store.list_steering("session")
    assert sorted(found.payload["set"]) == [1, 2]
    assert found.payload["tuple"] == [1, 2]
    assert isinstance(found.payload["object"], str)
    assert event.payload["set"] == {1, 2}  # the caller's object stays as it was


async def test_an_event_in_nan_or_infinite_time_or_payload_raises_nothing(host: Host) -> None:
    odd = [float("nan"), float("inf"), float("-inf")]
    for number, value in enumerate(odd):
        await host.store.save_event(host.event(float(number), {"value": value}))
        await host.store.save_steering(host.steering(str(number), {"value": value}))
    assert len(await host.store.load_history("trace")) == 3
    assert len(await host.store.list_steering("session")) == 3


async def test_an_empty_object_is_stored_and_missing_is_not(host: Host) -> None:
    store = host.store
    await store.save_memory_state("empty", {})
    await store.save_planner_state("empty", {})
    await store.save_event(host.event(payload={}))
    await store.save_task(host.task(progress={}))
    assert await store.load_memory_state("empty") == {}
    assert await store.load_memory_state("missing") is None
    assert await store.load_planner_state("empty") == {}
    assert await store.load_planner_state("empty") is None
    assert await store.load_planner_state("missing") is None
    assert [each.payload for each in await store.load_history("trace")] == [{}]
    assert [each.progress for each in await store.list_tasks("session")] == [{}]


async def test_what_is_not_there_is_none_or_an_empty_list(host: Host) -> None:
    store = host.store
    nothing = [
        await store.load_history("unknown"),
        await store.load_history(None),
        await store.list_bindings(router_session_id="unknown"),
        await store.list_tasks("unknown"),
        await store.list_updates("unknown"),
        await store.list_updates("unknown", task_id="unknown", since_id="unknown", limit=1),
        await store.list_steering("unknown"),
        await store.list_traces("unknown"),
        await store.list_planner_events("unknown"),
        await store.artifact_store.list(),
    ]
    assert nothing == [[]] * len(nothing)
    absent = [
        await store.load_planner_state("unknown"),
        await store.load_memory_state("unknown"),
        await store.get_trajectory("unknown", "unknown"),
        await store.find_binding(router_session_id="s", agent_url="a", remote_skill="r"),
        await store.artifact_store.get("unknown"),
        await store.artifact_store.get_ref("unknown"),
        await store.artifact_store.get_with_session_check("unknown", "session"),
    ]
    assert absent == [None] * len(absent)
    assert await store.artifact_store.delete("unknown") is False
    assert await store.artifact_store.exists("unknown") is False


async def test_what_is_stored_shares_nothing_with_the_callers_objects(host: Host) -> None:
    store, shared = host.store, {"inner": [1]}
    await store.save_event(host.event(payload=shared))
    await store.save_memory_state("key", shared)
    await store.save_planner_state("token", shared)
    await store.save_update(host.update("u", shared))
    await store.save_task(host.task(result=shared, progress=shared))
    await store.save_planner_event("trace", host.planner_event(extra=shared))
    await store.save_remote_binding(host.binding(metadata=shared))
    shared["inner"].append(2)

    async def contents() -> list[Any]:
        (task,) = await store.list_tasks("session")
        return [
            (await store.load_history("trace"))[0].payload,
            await store.load_memory_state("key"),
            (await store.list_updates("session"))[0].content,
            task.result,
            task.progress,
            (await store.list_planner_events("trace"))[0].extra,
            (await store.list_bindings(router_session_id="session"))[0].metadata,
        ]

    first = await contents()
    assert first == [{"inner": [1]}] * 7
    for each in first:
        each["inner"].append(3)
    assert await contents() == [{"inner": [1]}] * 7
    assert await store.load_planner_state("token") == {"inner": [1]}


@pytest.mark.parametrize("mapping", MAPPINGS, ids=["ordered", "proxy"])
async def test_any_mapping_comes_back_as_a_dict(host: Host, mapping: Any) -> None:
    await host.store.save_event(host.event(payload=mapping))
    await host.store.save_memory_state("key", mapping)
    await host.store.save_planner_state("token", mapping)
    (found,) = await host.store.load_history("trace")
    for each in (
        found.payload,
        await host.store.load_memory_state("key"),
        await host.store.load_planner_state("token"),
    ):
        assert (type(each), each) == (dict, {"a": 1})


async def test_what_comes_back_is_of_the_hosts_own_classes(host: Host) -> None:
    types, store = host.types, host.store
    task = host.task(status=types.TaskStatus.RUNNING, result=0, progress={"step": 1})
    await store.save_task(task)
    await store.save_update(host.update("u", update_type=types.UpdateType.RESULT))
    await store.save_steering(host.steering("e"))
    (found,) = await store.list_tasks("session")
    assert found == task
    assert found is not task
    assert [type(each) for each in (found.status, found.task_type, found.context_snapshot)] == [
        types.TaskStatus,
        types.TaskType,
        types.TaskContextSnapshot,
    ]
    (update,) = await store.list_updates("session")
    assert (type(update), update.update_type) == (types.StateUpdate, types.UpdateType.RESULT)
    (steered,) = await store.list_steering("session")
    assert type(steered) is types.SteeringEvent
    found.progress["step"] = 2
    assert (await store.list_tasks("session"))[0].progress == {"step": 1}


TIMES = {
    "aware": datetime(2024, 5, 1, 12, 30, 15, 123456, tzinfo=UTC),
    "offset": datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=-7, minutes=30))),
    "naive": datetime(2024, 5, 1, 12, 30, 15, 123456),  # noqa: DTZ001 - awareness is kept
    "old": datetime(1, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("name", TIMES)
async def test_a_time_keeps_its_instant_and_its_awareness(host: Host, name: str) -> None:
    moment = TIMES[name]
    await host.store.save_update(host.update("u", created_at=moment))
    await host.store.save_steering(host.steering("e", created_at=moment))
    await host.store.save_task(replace(host.task(), created_at=moment, updated_at=moment))
    (update,) = await host.store.list_updates("session")
    (steered,) = await host.store.list_steering("session")
    (task,) = await host.store.list_tasks("session")
    for found in (update.created_at, steered.created_at, task.created_at, task.updated_at):
        assert found == moment
        assert (found.tzinfo is None) == (moment.tzinfo is None)


async def test_a_time_of_an_event_comes_back_as_the_exact_double(host: Host) -> None:
    times = [1702857600.123456789, 0.1 + 0.2, 5e-324, 1.7976931348623157e308]
    for ts in times:
        await host.store.save_event(host.event(ts))
    assert [each.ts for each in await host.store.load_history("trace")] == sorted(times)
