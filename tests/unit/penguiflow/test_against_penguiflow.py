"""The records and the steering rules agree with the published package."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import models
from redis_state.models import (
    SteeringEvent,
    SteeringEventType,
    Trajectory,
    sanitize_payload,
    sanitize_steering_event,
    validate_steering_event,
)

REASON = "compares with the published package"
their_state = pytest.importorskip("penguiflow.state", reason=REASON)
their_planner = pytest.importorskip("penguiflow.planner", reason=REASON)
their_steering = pytest.importorskip("penguiflow.steering", reason=REASON)
their_metrics = pytest.importorskip("penguiflow.metrics", reason=REASON)

SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.uuids()
    | st.dates()
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sampled_from([list(range(size)) for size in (49, 50, 51)])
        | st.sampled_from([dict.fromkeys(range(size)) for size in (63, 64, 65)])
    ),
    max_leaves=5,
)
VALUES = st.sampled_from(
    [None, "", " ", "x", "foreground", "note", 0, 1, 1.5, False, [], ["x"], {}, {"a": 1}]
)
NAMES = st.sampled_from(
    [
        *("text", "scope", "severity", "instruction", "goal", "query", "constraints", "reason"),
        *("hard", "priority", "resume_token", "patch_id", "event_id", "decision", "active_tasks"),
    ]
)
PRIORITIZE = SteeringEventType.PRIORITIZE


@pytest.mark.parametrize("name", ["StoredEvent", "RemoteBinding", "TaskState"])
def test_records_have_the_same_fields(name: str) -> None:
    ours: Any = getattr(models, name)
    theirs: Any = getattr(their_state, name)
    assert [(field.name, field.default) for field in dataclasses.fields(ours)] == [
        (field.name, field.default) for field in dataclasses.fields(theirs)
    ]


@pytest.mark.parametrize("name", ["StateUpdate", "SteeringEvent"])
def test_their_enums_are_taken_by_our_models(name: str) -> None:
    kind = {"StateUpdate": "update_type", "SteeringEvent": "event_type"}[name]
    member = {"StateUpdate": "RESULT", "SteeringEvent": "CANCEL"}[name]
    enum = {"StateUpdate": "UpdateType", "SteeringEvent": "SteeringEventType"}[name]
    given_values = {"session_id": "s", "task_id": "t", "content": 1}
    made = getattr(models, name)(**given_values, **{kind: getattr(their_state, enum)[member]})
    assert getattr(made, kind) is getattr(models, enum)[member]


def test_planner_events_have_the_same_fields() -> None:
    assert [(field.name, field.default) for field in dataclasses.fields(models.PlannerEvent)] == [
        (field.name, field.default) for field in dataclasses.fields(their_planner.PlannerEvent)
    ]


@pytest.mark.parametrize("name", ["TaskContextSnapshot", "StateUpdate", "SteeringEvent"])
def test_models_have_the_same_fields(name: str) -> None:
    ours: dict[str, Any] = getattr(models, name).model_fields
    theirs: dict[str, Any] = getattr(their_state, name).model_fields
    assert [(key, field.default) for key, field in ours.items()] == [
        (key, field.default) for key, field in theirs.items()
    ]


@pytest.mark.parametrize("name", ["TaskStatus", "TaskType", "UpdateType", "SteeringEventType"])
def test_enums_have_the_same_members(name: str) -> None:
    ours: Any = getattr(models, name)
    theirs: Any = getattr(their_state, name)
    assert [(member.name, member.value, str(member)) for member in ours] == [
        (member.name, member.value, str(member)) for member in theirs
    ]


@pytest.mark.parametrize(
    "name", [name for name in models.__all__ if name.startswith(("Supports", "StateStore"))]
)
def test_protocols_have_the_same_methods(name: str) -> None:
    assert public(getattr(models, name)) == public(getattr(their_state, name))


def public(protocol: Any) -> set[str]:
    names: list[str] = list(protocol.__dict__)
    return {name for name in names if not name.startswith("_")}


def test_limits_are_the_same() -> None:
    limits = [name for name in models.__all__ if name.startswith("MAX_STEERING")]
    assert len(limits) == 5
    assert all(getattr(models, name) == getattr(their_steering, name) for name in limits)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_payloads_are_sanitised_alike(payload: dict[str, Any]) -> None:
    assert sanitize_payload(payload) == their_steering.sanitize_payload(payload)


@pytest.mark.parametrize("size", [1, 2, 4, 5])
@pytest.mark.parametrize("text", ["x", "é", "\U0001f600", '"'])
def test_large_payloads_are_sanitised_alike(text: str, size: int) -> None:
    payload = {f"k{index}": [text * 4095, [text * 4097]] for index in range(size)}
    ours, theirs = sanitize_payload(payload), their_steering.sanitize_payload(payload)
    if "truncated" in theirs:
        # Theirs may exceed the limit once it is quoted; ours is then a shorter start of it.
        assert ours["truncated"] is True
        assert theirs["summary"].startswith(ours["summary"])
    else:
        assert ours == theirs


@given(st.sampled_from(SteeringEventType), st.dictionaries(NAMES, VALUES))
def test_events_are_judged_alike(kind: SteeringEventType, payload: dict[str, Any]) -> None:
    ours = SteeringEvent(session_id="s", task_id="t", event_type=kind, payload=payload)
    theirs = their_state.SteeringEvent(**ours.model_dump())
    # Deliberately stricter: True is no priority.
    stricter = kind is PRIORITIZE and isinstance(payload.get("priority"), bool)
    expected = stricter or refuses(their_steering.validate_steering_event, theirs)
    assert refuses(validate_steering_event, ours) == expected


def refuses(validate: Any, event: Any) -> bool:
    try:
        validate(event)
    except (ValueError, TypeError):  # theirs cannot hash a list given as scope
        return True
    return False


def test_their_events_can_be_given_to_our_functions() -> None:
    theirs: Any = their_state.SteeringEvent(
        session_id="s",
        task_id="t",
        event_type=their_state.SteeringEventType.USER_MESSAGE,
        payload={"text": "x" * 5000},
    )
    validate_steering_event(theirs)
    clean: Any = sanitize_steering_event(theirs)
    assert type(clean) is type(theirs)
    assert len(clean.payload["text"]) == 4096
    assert SteeringEvent(**clean.model_dump()).to_injection() == clean.to_injection()


def test_a_flow_event_becomes_the_same_row() -> None:
    make = their_metrics.FlowEvent
    event = make("node_start", 1.5, "n", "n1", "t", 1, None, 0, 0, 0, 0, None, 0, False)  # noqa: FBT003
    ours = models.StoredEvent.from_flow_event(event)
    assert dataclasses.asdict(ours) == dataclasses.asdict(
        their_state.StoredEvent.from_flow_event(event)
    )


def test_a_trajectory_of_theirs_passes_through_ours() -> None:
    theirs = their_planner.Trajectory(query="q", llm_context={"a": 1}, tool_context={"b": [1]})
    theirs.steps.append(
        their_planner.TrajectoryStep(
            action=their_planner.PlannerAction(next_node="tool", args={"x": 1}, thought="t"),
            observation={"y": None},
            llm_observation="short",
            failure={"code": 1},
            streams={"out": [{"seq": 0, "text": "a"}]},
        )
    )
    theirs.compress()
    theirs.steering_inputs.append("hurry")
    written = theirs.serialise()
    assert Trajectory.from_serialised(written).serialise() == written
    again = their_planner.Trajectory.from_serialised(
        Trajectory.from_serialised(written).serialise()
    )
    assert again.serialise() == written
