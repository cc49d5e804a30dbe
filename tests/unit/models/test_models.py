"""The records: names, defaults and capability checks."""

from __future__ import annotations

import dataclasses
import inspect
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import models
from redis_state.errors import InvalidField, MissingCapability
from redis_state.models import (
    PlannerEvent,
    RemoteBinding,
    StateStore,
    StateUpdate,
    StoredEvent,
    SupportsArtifacts,
    SupportsConversationBindings,
    SupportsMemoryState,
    SupportsPlannerEvents,
    SupportsPlannerState,
    SupportsSteering,
    SupportsTasks,
    SupportsTrajectories,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    Trajectory,
    TrajectoryStep,
    UpdateType,
    missing_capabilities,
    require_capabilities,
)
from redis_state.serialization.codec import decode, encode


def merge(known: dict[str, Any], unknown: dict[str, Any]) -> dict[str, Any]:
    return unknown | known


JSON: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just([{"a": [None]}])
)
OBJECTS = st.dictionaries(st.text(max_size=3), JSON, max_size=2)
STEPS = st.builds(
    merge,
    st.fixed_dictionaries(
        {"action": OBJECTS, "observation": JSON, "error": st.none() | st.text(), "failure": JSON},
        optional={"llm_observation": JSON.filter(lambda value: value is not None)},
    ),
    OBJECTS,
)
TRAJECTORIES = st.builds(
    merge,
    st.fixed_dictionaries(
        {
            "query": st.text(),
            "llm_context": OBJECTS,
            "tool_context": st.none() | OBJECTS,
            "input_parts": st.lists(OBJECTS, max_size=2),
            "artifacts": OBJECTS,
            "sources": st.lists(OBJECTS, max_size=2),
            "metadata": OBJECTS,
            "steps": st.lists(STEPS, max_size=2),
            "summary": st.none() | OBJECTS,
            "hint_state": OBJECTS,
            "resume_user_input": st.none() | st.text(),
            "steering_inputs": st.lists(st.text(), max_size=2),
            "background_results": OBJECTS,
        }
    ),
    OBJECTS,
)


def make_task() -> TaskState:
    return TaskState(
        task_id="t",
        session_id="s",
        status=TaskStatus.PENDING,
        task_type=TaskType.BACKGROUND,
        priority=0,
        context_snapshot=TaskContextSnapshot(session_id="s", task_id="t"),
    )


def names(record: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def test_everything_exported_exists_once() -> None:
    assert len(set(models.__all__)) == len(models.__all__)
    assert all(hasattr(models, name) for name in models.__all__)


def test_a_stored_event_copies_what_it_takes_from_a_flow_event() -> None:
    payload = {"latency_ms": 1.5}
    event = SimpleNamespace(
        event_type="novel_kind",
        ts=1702857600.123,
        node_name=None,
        node_id="n",
        trace_id="t",
        to_payload=lambda: payload,
    )
    stored = StoredEvent.from_flow_event(event)
    assert stored == StoredEvent("t", 1702857600.123, "novel_kind", None, "n", payload)
    assert stored.payload is not payload


def test_a_binding_has_the_eleven_fields() -> None:
    binding = RemoteBinding("trace", None, "task", "https://agent")
    assert names(binding)[4:] == [
        "router_session_id",
        "remote_skill",
        "tenant_id",
        "user_id",
        "last_remote_task_id",
        "is_terminal",
        "metadata",
    ]
    assert binding.is_terminal is False
    assert binding.metadata == {}


def test_three_statuses_are_terminal() -> None:
    assert {status for status in TaskStatus if status.is_terminal} == {
        TaskStatus.COMPLETE,
        TaskStatus.FAILED,
        TaskStatus.CANCELLED,
    }


def test_update_status_renews_the_time() -> None:
    task = make_task()
    before = task.updated_at = datetime(2020, 1, 1, tzinfo=UTC)
    task.update_status(TaskStatus.RUNNING)
    assert (task.status, task.updated_at > before) == (TaskStatus.RUNNING, True)
    assert task.created_at.tzinfo is UTC


def test_a_snapshot_has_its_own_containers() -> None:
    first, second = make_task().context_snapshot, make_task().context_snapshot
    first.llm_context["x"] = 1
    assert second.llm_context == {}
    assert (first.spawned_from_task_id, first.propagate_on_cancel) == ("foreground", "cascade")


@pytest.mark.parametrize("content", [None, object(), {1: {2}}, b"\xff", float("inf"), ValueError()])
def test_an_update_takes_any_content_as_it_is(content: Any) -> None:
    update = StateUpdate(
        session_id="s", task_id="t", update_type=UpdateType.RESULT, content=content
    )
    assert update.content is content or update.content == content
    assert len(update.update_id) == 32
    assert update.created_at.tzinfo is UTC


def test_an_update_gets_an_id_of_its_own() -> None:
    made = [
        StateUpdate(session_id="s", task_id="t", update_type=UpdateType.ERROR, content=1)
        for _ in range(2)
    ]
    assert made[0].update_id != made[1].update_id


def test_a_planner_event_is_frozen() -> None:
    event = PlannerEvent("finish", 0.5, 3)
    assert event.extra == {}
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.ts = 1.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


@given(TRAJECTORIES)
def test_a_trajectory_survives_the_round_trip(content: dict[str, Any]) -> None:
    read = Trajectory.from_serialised(content)
    assert read.serialise() == content
    assert Trajectory.from_serialised(decode(encode(read.serialise()))) == read


def test_a_trajectory_fills_in_what_an_older_writer_left_out() -> None:
    read = Trajectory.from_serialised({"query": "q", "steps": [{"action": {"next_node": "n"}}]})
    assert read == Trajectory("q", steps=[TrajectoryStep({"next_node": "n"})])
    assert Trajectory.from_serialised({"query": "q"}).steps == []


def test_a_step_leaves_out_what_it_does_not_have() -> None:
    assert TrajectoryStep({"a": 1}).serialise() == {
        "action": {"a": 1},
        "observation": None,
        "error": None,
        "failure": None,
    }
    full = TrajectoryStep({}, llm_observation=0, streams={"out": [{"seq": 0}]}, extra={"new": 1})
    assert TrajectoryStep.from_serialised(full.serialise()) == full


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({}, "query"),
        ({"query": "q", "steps": {}}, "steps"),
        ({"query": "q", "steps": None}, "steps"),
        ({"query": "q", "steps": ["text"]}, "steps"),
        ({"query": "q", "steps": [{"error": "no action"}]}, "steps"),
    ],
)
def test_a_malformed_trajectory_is_refused_by_field(content: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        Trajectory.from_serialised(content)
    assert caught.value.field == field


def test_a_field_called_extra_is_just_another_unknown_key() -> None:
    content = Trajectory("q").serialise() | {"extra": {"x": 1}}
    assert Trajectory.from_serialised(content).serialise() == content


@pytest.mark.parametrize(
    ("protocol", "methods"),
    [
        (StateStore, ["save_event", "load_history", "save_remote_binding"]),
        (SupportsPlannerState, ["save_planner_state", "load_planner_state"]),
        (
            SupportsConversationBindings,
            ["find_binding", "list_bindings", "mark_binding_terminal"],
        ),
        (SupportsMemoryState, ["save_memory_state", "load_memory_state"]),
        (SupportsTasks, ["save_task", "list_tasks", "save_update", "list_updates"]),
        (SupportsSteering, ["save_steering", "list_steering"]),
        (SupportsTrajectories, ["save_trajectory", "get_trajectory", "list_traces"]),
        (SupportsPlannerEvents, ["save_planner_event", "list_planner_events"]),
        (SupportsArtifacts, ["artifact_store"]),
    ],
)
def test_a_capability_is_recognised_by_all_of_its_methods(
    protocol: type, methods: list[str]
) -> None:
    full = SimpleNamespace(**dict.fromkeys(methods, print))
    assert isinstance(full, protocol)
    delattr(full, methods[-1])
    assert not isinstance(full, protocol)
    assert missing_capabilities(full, methods) == methods[-1:]


def test_every_capability_but_the_artifacts_is_asynchronous() -> None:
    for name in models.__all__:
        members: dict[str, Any] = dict(vars(models)[name].__dict__) if name[0] == "S" else {}
        if name == "StateStore" or (name.startswith("Supports") and name != "SupportsArtifacts"):
            methods = [value for key, value in members.items() if key[0] != "_"]
            assert methods
            assert all(map(inspect.iscoroutinefunction, methods))


def test_a_missing_capability_is_named_with_its_feature() -> None:
    store = SimpleNamespace(save_task=print)
    require_capabilities(store, feature="sessions", methods=["save_task"])
    with pytest.raises(MissingCapability, match="sessions") as caught:
        require_capabilities(store, feature="sessions", methods=["save_task", "list_tasks"])
    assert caught.value.missing == ["list_tasks"]
