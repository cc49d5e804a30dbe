"""What a steering payload may hold, and how the rest is cut."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import SteeringValidationError
from redis_state.models import (
    MAX_STEERING_DEPTH,
    MAX_STEERING_KEYS,
    MAX_STEERING_LIST_ITEMS,
    MAX_STEERING_PAYLOAD_BYTES,
    MAX_STEERING_STRING,
    SteeringEvent,
    SteeringEventType,
    sanitize_payload,
    sanitize_steering_event,
    validate_steering_event,
)


@dataclass(frozen=True)
class Repeated:
    """Stands for a large value with a short name."""

    item: Any
    times: int


def expand(value: Any) -> Any:
    if isinstance(value, Repeated):
        item = expand(value.item)
        return item * value.times if isinstance(item, str) else [item] * value.times
    kind = cast("type[object]", type(value))
    if kind is list:
        return [expand(item) for item in value]
    if kind is dict:
        return {key: expand(item) for key, item in value.items()}
    return value


ODD_SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.builds(Repeated, st.text(min_size=1, max_size=2), st.sampled_from([2000, 4096, 5000]))
    | st.binary()
    | st.datetimes()
    | st.uuids()
)
ODD: st.SearchStrategy[Any] = st.recursive(
    ODD_SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.builds(
            Repeated, inner.filter(lambda item: not isinstance(item, Repeated)), st.just(51)
        )
        | st.frozensets(st.integers() | st.text() | st.binary())
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sampled_from([dict.fromkeys(range(size)) for size in (63, 64, 65)])
    ),
    max_leaves=8,
)
PAYLOADS = st.dictionaries(st.text(max_size=5), ODD, max_size=5)


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError


def event(kind: SteeringEventType, payload: Any) -> SteeringEvent:
    return SteeringEvent.model_construct(
        session_id="s", task_id="t", event_type=kind, payload=payload
    )


def size(payload: Any) -> int:
    text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
    return len(text.encode("utf-8", "surrogatepass"))


def depth(value: Any) -> int:
    kind = cast("type[object]", type(value))
    inner = value.values() if kind is dict else value if kind is list else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(PAYLOADS)
def test_the_result_is_plain_json_within_all_limits(payload: dict[str, Any]) -> None:
    result = sanitize_payload(expand(payload))
    assert size(result) <= MAX_STEERING_PAYLOAD_BYTES
    assert depth(result) <= MAX_STEERING_DEPTH


@given(PAYLOADS)
def test_sanitising_twice_changes_nothing_more(payload: dict[str, Any]) -> None:
    once = sanitize_payload(expand(payload))
    assert sanitize_payload(copy.deepcopy(once)) == once


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=5))
def test_a_small_plain_payload_stays_as_it_is(payload: dict[str, Any]) -> None:
    assert sanitize_payload(payload) == payload


def test_long_text_is_cut() -> None:
    assert sanitize_payload({"text": "x" * 5000}) == {"text": "x" * MAX_STEERING_STRING}


def test_long_lists_end_with_a_mark() -> None:
    result = sanitize_payload({"items": list(range(51)), "full": list(range(50))})
    assert result["items"] == [*range(MAX_STEERING_LIST_ITEMS), "<truncated>"]
    assert result["full"] == list(range(50))


def test_wide_objects_get_a_marked_key() -> None:
    result = sanitize_payload({f"k{index}": index for index in range(65)})
    assert len(result) == MAX_STEERING_KEYS + 1
    assert result["__truncated_keys__"] is True
    assert "__truncated_keys__" not in sanitize_payload(dict.fromkeys(map(str, range(64))))


def test_long_keys_are_cut() -> None:
    payload: dict[Any, int] = {"k" * 100: 1, 5: 2}
    assert sanitize_payload(payload) == {"k" * 64: 1, "5": 2}


def test_nesting_is_cut_at_the_sixth_level() -> None:
    value: Any = "leaf"
    for _ in range(8):
        value = {"a": value}
    assert sanitize_payload(value) == {"a": {"a": {"a": {"a": {"a": {"a": "<truncated>"}}}}}}


def test_too_large_a_payload_becomes_the_start_of_its_text() -> None:
    payload = {f"k{index}": "x" * 4000 for index in range(5)}
    result = sanitize_payload(payload)
    assert result == {"truncated": True, "summary": json.dumps(payload)[:MAX_STEERING_STRING]}


@pytest.mark.parametrize("text", ["\U0001f600", '"', "\x01", "\ud800"])
def test_the_summary_itself_keeps_the_limit(text: str) -> None:
    payload = {f"k{index}": text * 4096 for index in range(5)}
    result = sanitize_payload(payload)
    assert result["truncated"] is True
    assert size(result) <= MAX_STEERING_PAYLOAD_BYTES
    assert sanitize_payload(result) == result


def test_what_json_cannot_hold_becomes_text() -> None:
    payload = {"a": float("nan"), "b": b"x", "c": Mute(), "d": {2, 1}, "e": 1 << 20_000}
    assert sanitize_payload(payload) == {
        "a": "NaN",
        "b": "b'x'",
        "c": "<Mute>",
        "d": [1, 2],
        "e": "0x1" + "0" * (MAX_STEERING_STRING - 3),
    }


def test_a_payload_that_holds_itself_many_times_is_cut_soon() -> None:
    payload: dict[str, Any] = {}
    payload.update({f"k{index}": payload for index in range(64)})
    assert set(sanitize_payload(payload)) == {"truncated", "summary"}


def test_the_event_given_is_not_changed() -> None:
    original = event(SteeringEventType.USER_MESSAGE, {"text": "x" * 5000, "more": [{"a": {1}}]})
    before = copy.deepcopy(original)
    clean = sanitize_steering_event(original)
    assert original == before
    assert clean.payload == {"text": "x" * 4096, "more": [{"a": [1]}]}
    assert clean.payload["more"] is not original.payload["more"]
    assert clean.model_copy(update={"payload": original.payload}) == original


def test_sanitising_does_not_validate() -> None:
    assert sanitize_steering_event(event(SteeringEventType.USER_MESSAGE, {})).payload == {}
    assert sanitize_steering_event(event(SteeringEventType.CANCEL, None)).payload == {}
    assert sanitize_steering_event(event(SteeringEventType.CANCEL, [1])).payload == {"value": [1]}


def test_an_injection_is_the_event_as_json() -> None:
    made = SteeringEvent(
        session_id="s", task_id="t", event_type=SteeringEventType.REDIRECT, payload={"goal": {"é"}}
    )
    assert json.loads(made.to_injection()) == {
        "steering": {
            "event_id": made.event_id,
            "task_id": "t",
            "event_type": "REDIRECT",
            "payload": {"goal": ["é"]},
            "created_at": made.created_at.isoformat(),
        }
    }
    assert "é" in made.to_injection()


VALID: list[tuple[str, dict[str, Any]]] = [
    ("INJECT_CONTEXT", {"text": "x"}),
    ("INJECT_CONTEXT", {"text": "x", "scope": "task_only", "severity": "correction"}),
    ("REDIRECT", {"instruction": "x"}),
    ("REDIRECT", {"instruction": "", "goal": "x", "constraints": {}}),
    ("REDIRECT", {"query": "x"}),
    ("CANCEL", {}),
    ("CANCEL", {"reason": "x", "hard": True}),
    ("PRIORITIZE", {"priority": 0}),
    ("PRIORITIZE", {"priority": -5}),
    ("PRIORITIZE", {"priority": 2**2048 - 1}),
    ("PAUSE", {}),
    ("RESUME", {"reason": "x"}),
    ("APPROVE", {"resume_token": "x"}),
    ("APPROVE", {"patch_id": "x", "decision": "yes"}),
    ("REJECT", {"event_id": "x"}),
    ("USER_MESSAGE", {"text": "x"}),
    ("USER_MESSAGE", {"text": "x", "active_tasks": []}),
]
INVALID: list[tuple[str, Any]] = [
    ("INJECT_CONTEXT", {}),
    ("INJECT_CONTEXT", {"text": "  "}),
    ("INJECT_CONTEXT", {"text": 1}),
    ("INJECT_CONTEXT", {"text": "x", "scope": "global"}),
    ("INJECT_CONTEXT", {"text": "x", "scope": ["foreground"]}),
    ("INJECT_CONTEXT", {"text": "x", "severity": "high"}),
    ("REDIRECT", {}),
    ("REDIRECT", {"instruction": 1, "goal": "x"}),
    ("REDIRECT", {"goal": "x", "constraints": []}),
    ("CANCEL", {"reason": 1}),
    ("CANCEL", {"hard": "yes"}),
    ("PRIORITIZE", {}),
    ("PRIORITIZE", {"priority": "1"}),
    ("PRIORITIZE", {"priority": 1.0}),
    ("PRIORITIZE", {"priority": True}),
    ("PRIORITIZE", {"priority": 2**2048}),
    ("PAUSE", {"reason": 1}),
    ("RESUME", {"reason": []}),
    ("APPROVE", {}),
    ("APPROVE", {"resume_token": ""}),
    ("APPROVE", {"resume_token": "x", "decision": 1}),
    ("REJECT", {"patch_id": 1}),
    ("USER_MESSAGE", {"text": ""}),
    ("USER_MESSAGE", {"text": "x", "active_tasks": "t"}),
    ("CANCEL", "no object"),
    ("CANCEL", None),
]


@pytest.mark.parametrize(("kind", "payload"), VALID)
def test_valid_payloads_pass(kind: str, payload: dict[str, Any]) -> None:
    validate_steering_event(event(SteeringEventType(kind), payload))


@pytest.mark.parametrize(("kind", "payload"), INVALID)
def test_invalid_payloads_are_refused(kind: str, payload: Any) -> None:
    with pytest.raises(SteeringValidationError) as caught:
        validate_steering_event(event(SteeringEventType(kind), payload))
    assert len(caught.value.errors) == 1


def test_every_violation_is_listed() -> None:
    with pytest.raises(SteeringValidationError) as caught:
        validate_steering_event(
            event(SteeringEventType.INJECT_CONTEXT, {"scope": "x", "severity": "y"})
        )
    assert caught.value.errors == [
        "INJECT_CONTEXT: needs a non-empty text",
        "INJECT_CONTEXT: scope must be foreground or task_only",
        "INJECT_CONTEXT: severity must be note or correction",
    ]


@pytest.mark.parametrize("kind", SteeringEventType)
def test_every_type_has_rules(kind: SteeringEventType) -> None:
    everything = {"text": "x", "goal": "x", "priority": 1, "patch_id": "x"}
    validate_steering_event(event(kind, everything))
