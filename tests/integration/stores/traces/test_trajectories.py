from __future__ import annotations

from typing import Any

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.models import Trajectory, TrajectoryStep
from redis_state.testing import eventually
from tests.support.samples import STORED_STRANGE, changed, strange


async def test_a_trajectory_comes_back_as_it_was_saved(store: RedisStateStore) -> None:
    trajectory = Trajectory(
        query="q",
        llm_context={"a": {}},
        tool_context={},
        steps=[
            TrajectoryStep({"next_node": "x"}, observation=0),
            TrajectoryStep({"next_node": "y"}, observation="", error="e", extra={"later": True}),
        ],
        summary={},
        extra={"unknown": [1]},
    )
    await store.save_trajectory("trace", "session", trajectory)
    assert await store.get_trajectory("trace", "session") == trajectory


async def test_another_sessions_trajectory_is_none(store: RedisStateStore) -> None:
    await store.save_trajectory("trace", "session", Trajectory("mine"))
    assert await store.get_trajectory("trace", "other") is None
    assert await store.get_trajectory("other", "session") is None


async def test_one_trace_of_two_sessions_is_two_trajectories(store: RedisStateStore) -> None:
    await store.save_trajectory("trace", "one", Trajectory("first"))
    await store.save_trajectory("trace", "two", Trajectory("second"))
    assert await store.get_trajectory("trace", "one") == Trajectory("first")
    assert await store.get_trajectory("trace", "two") == Trajectory("second")
    assert await store.list_traces("one") == await store.list_traces("two") == ["trace"]


async def test_the_trace_saved_last_is_listed_first(store: RedisStateStore) -> None:
    for trace in ("a", "b", "c", "a"):
        await store.save_trajectory(trace, "session", Trajectory(trace))
    assert await store.list_traces("session") == ["a", "c", "b"]
    assert await store.list_traces("session", limit=2) == ["a", "c"]
    assert await store.list_traces("session", 1) == ["a"]
    assert await store.list_traces("session", limit=0) == []
    assert len(await store.list_traces("session", limit=10**30)) == 3
    assert await store.list_traces("unknown") == []


async def test_a_trace_that_has_expired_is_not_listed(
    store: RedisStateStore, settings: Settings
) -> None:
    await store.save_trajectory("kept", "session", Trajectory("kept"))
    async with changed(settings, trajectories_ttl="PT0.1S") as brief:
        await brief.save_trajectory("brief", "session", Trajectory("brief"))

    async def gone() -> bool:
        return await store.get_trajectory("brief", "session") is None

    await eventually(gone, "a trajectory expires")
    assert await store.list_traces("session") == ["kept"]


async def test_what_json_cannot_hold_is_stored_as_its_nearest_form(store: RedisStateStore) -> None:
    trajectory = Trajectory("q", metadata=strange(), input_parts=[b"\xff"])
    await store.save_trajectory("trace", "session", trajectory)
    loaded = await store.get_trajectory("trace", "session")
    assert loaded is not None
    assert loaded.metadata == STORED_STRANGE
    assert loaded.input_parts == ["/w=="]


@pytest.mark.parametrize("trace_id", ["", "a:b", "{x}", "\ud800", "%", "x" * 10_000])
async def test_any_trace_id_is_listed_as_it_is(store: RedisStateStore, trace_id: str) -> None:
    await store.save_trajectory(trace_id, "session", Trajectory("q"))
    assert await store.list_traces("session") == [trace_id]
    assert await store.get_trajectory(trace_id, "session") == Trajectory("q")


async def test_a_trajectory_deeper_than_python_calls_go_is_stored_as_deep_as_json_is(
    store: RedisStateStore,
) -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    await store.save_trajectory("trace", "session", Trajectory("q", llm_context={"deep": deep}))
    found = await store.get_trajectory("trace", "session")
    assert found is not None
    assert found.llm_context is not None
    shown = repr(found.llm_context["deep"])
    assert shown.strip("[]") == "'<too deep>'"
    assert 200 < shown.count("[") < 300
