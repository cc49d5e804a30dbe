"""Keys, configurations, documents and the pure changes of a memory."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import InvalidField, MemoryBudgetExceeded, memory
from redis_state.memory import (
    CompositeKey,
    MemoryBudget,
    MemoryHealth,
    MemoryIsolation,
    MemoryKey,
    ShortTermMemoryConfig,
    TrajectoryDigest,
    default_token_estimator,
    resolve_key,
)
from redis_state.memory.keys import read_composite
from redis_state.memory.state import (
    Added,
    Degraded,
    Folded,
    MemoryChange,
    Recovered,
    Rules,
    State,
    settled,
)
from redis_state.memory.wire import document_of, state_of, turn_of
from tests.support.memory import KEY, config, full_turn, memory_of, turn
from tests.support.samples import Opaque

_DIGEST: Any = TrajectoryDigest
NAMES = st.text(alphabet="ab:%3A\x00é", max_size=6)


@given(*[st.tuples(NAMES, NAMES, NAMES.filter(str.strip))] * 2)
def test_two_keys_are_written_the_same_only_if_they_are(
    one: tuple[str, str, str], two: tuple[str, str, str]
) -> None:
    first, second = MemoryKey(*one).composite(), MemoryKey(*two).composite()
    assert (first == second) == (one == two)
    assert first.count(":") == 2


@given(*[st.tuples(NAMES, NAMES, NAMES.filter(str.strip))] * 2)
def test_a_key_joined_by_a_host_is_ours_or_refused(
    one: tuple[str, str, str], two: tuple[str, str, str]
) -> None:
    joined = ":".join(one)
    if joined.count(":") > 2:
        with pytest.raises(InvalidField):
            read_composite(joined)
        return
    assert read_composite(joined) == MemoryKey(*one).composite()
    assert (read_composite(joined) == MemoryKey(*two).composite()) == (one == two)


def test_a_plain_name_is_a_key_of_its_own() -> None:
    assert read_composite("notes") == "notes"
    assert read_composite(KEY) == read_composite(KEY.composite()) == "acme:ana:s-1"
    assert type(read_composite("a:b:c")) is CompositeKey


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (None, "text is needed"),
        (b"a:b:c", "text is needed"),
        ("a:b:c:d", "two colons"),
        ("a:b:", "no session"),
        ("", "no session"),
    ],
)
def test_a_key_that_could_be_anybodys_is_refused(key: Any, problem: str) -> None:
    with pytest.raises(InvalidField, match=problem) as caught:
        read_composite(key)
    assert caught.value.field == "key"


@pytest.mark.parametrize(
    ("names", "field"),
    [((None, "u", "s"), "tenant_id"), (("t", 1, "s"), "user_id"), (("t", "u", " "), "session_id")],
)
def test_a_key_of_nobody_cannot_be_made(names: tuple[Any, Any, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        MemoryKey(*names)
    assert caught.value.field == field


def test_a_context_without_a_session_has_a_key_only_if_it_may() -> None:
    ephemeral = MemoryKey("t", "u", "e")
    assert resolve_key(None, ephemeral=ephemeral) is None
    open_to_all = MemoryIsolation(require_explicit_key=False)
    assert resolve_key({}, open_to_all, ephemeral=ephemeral) is ephemeral
    assert resolve_key({"session_id": "s"}) == MemoryKey("default", "anonymous", "s")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (MemoryBudget, {"full_zone_turns": -1}),
        (MemoryBudget, {"summary_max_tokens": -1}),
        (MemoryBudget, {"total_max_tokens": -1}),
        (MemoryBudget, {"summary_max_tokens": 11, "total_max_tokens": 10}),
        (MemoryBudget, {"overflow_policy": "drop"}),
        (MemoryIsolation, {"tenant_key": ""}),
        (MemoryIsolation, {"user_key": ""}),
        (MemoryIsolation, {"session_key": ""}),
        (ShortTermMemoryConfig, {"strategy": "all"}),
        (ShortTermMemoryConfig, {"recovery_backlog_limit": -1}),
        (ShortTermMemoryConfig, {"retry_attempts": -1}),
        (ShortTermMemoryConfig, {"retry_backoff_base_s": -1.0}),
        (ShortTermMemoryConfig, {"degraded_retry_interval_s": -1.0}),
    ],
)
def test_a_value_that_cannot_be_used_is_named(kind: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidField) as caught:
        kind(**fields)
    assert caught.value.field == next(iter(fields))


def test_the_configuration_is_the_published_one() -> None:
    theirs = pytest.importorskip("penguiflow.planner.memory", reason="compares with it")
    for name in ("MemoryBudget", "MemoryIsolation", "ShortTermMemoryConfig", "MemoryHealth"):
        ours, published = getattr(memory, name), getattr(theirs, name)
        if name == "MemoryHealth":
            assert [health.value for health in ours] == [health.value for health in published]
        else:
            fields = list(published.__dataclass_fields__)
            assert list(ours.__dataclass_fields__) == fields
            plain = [field for field in fields if field not in {"budget", "isolation"}]
            assert [getattr(ours(), f) for f in plain] == [getattr(published(), f) for f in plain]
    assert all(
        default_token_estimator("x" * n) == theirs.default_token_estimator("x" * n)
        for n in range(20)
    )


def test_a_turn_is_taken_as_plain_values_that_nobody_else_holds() -> None:
    shown: dict[str, Any] = {"list": [1], "object": Opaque(), "bytes": b"x"}
    taken = turn_of(turn("1", artifacts_shown=shown), "id")
    shown["list"].append(2)
    assert taken["artifacts_shown"] == {"list": [1], "object": "<Opaque>", "bytes": "x"}


def test_something_that_is_no_turn_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(InvalidField, match="trajectory_digest") as caught:
        turn_of({"user_message": "a dict"}, "id")
    assert caught.value.field == "turn"


@pytest.mark.parametrize(
    "wrong",
    [
        {"ts": datetime.now(UTC)},
        {"ts": 10**400},
        {"artifacts_shown": [1]},
        {"artifacts_hidden_refs": 1},
        {"trajectory_digest": _DIGEST([], "", None, 1)},
    ],
)
def test_a_turn_that_could_not_be_read_back_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidField) as caught:
        turn_of(turn("1", **wrong), "id")
    assert caught.value.field == "turn"


def test_a_turn_is_at_once_what_other_processes_read_of_it() -> None:
    taken = turn_of(turn("1", artifacts_hidden_refs=None, ts=None), "id")
    state = state_of({**document_of(State(turns=[taken]), config()), "known": None})
    assert state.turns == [taken]


async def test_what_is_shown_can_be_changed_without_changing_the_memory() -> None:
    one = memory_of(None)
    await one.add_turn(full_turn("1"))
    before = copy.deepcopy(await one.get_llm_context())
    shown: Any = await one.get_llm_context()
    (recent,) = shown["conversation_memory"]["recent_turns"]
    recent["trajectory_digest"]["tools_invoked"].append("mine")
    recent["user"] = "mine"
    assert await one.get_llm_context() == before


def test_a_document_comes_back_as_it_was() -> None:
    turns = [turn_of(full_turn(number), f"id-{number}") for number in range(4)]
    state = State(
        health=MemoryHealth.DEGRADED,
        summary="é",
        turns=turns[:1],
        pending=turns[1:2],
        backlog=turns[2:],
        known=["id-0"],
        folds=3,
    )
    assert state_of(document_of(state, config())) == state


def test_a_document_with_as_little_as_possible_is_a_memory() -> None:
    state = state_of({"version": 1, "health": "healthy", "turns": [{}], "known": 3, "folds": "x"})
    (only,) = state.turns
    assert only["user_message"] == ""
    assert (state.summary, state.known, state.folds) == ("", [], 0)


def test_turns_without_ids_are_named_by_content_the_same_way_each_time() -> None:
    row = {"user_message": "1", "assistant_response": "yes"}
    document = {"version": 1, "health": "healthy", "turns": [row, row], "backlog": [row]}
    names = [[t["id"] for t in state_of(document).turns] for _ in range(2)]
    assert names[0] == names[1]
    assert len({*names[0], state_of(document).backlog[0]["id"]}) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"trajectory_digest": 5},
        {"ts": "a secret"},
        {"artifacts_shown": 5},
        {"artifacts_hidden_refs": 5},
    ],
    ids=str,
)
def test_a_wrong_field_of_a_turn_is_refused_without_its_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidField) as caught:
        state_of({"version": 1, "health": "healthy", "pending": [wrong]})
    assert caught.value.field == "pending"
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def waiting(*names: str) -> list[dict[str, Any]]:
    return [turn_of(turn(name), name) for name in names]


CHANGES: list[tuple[str, MemoryChange, tuple[str, str, str] | None]] = [
    ("healthy", Degraded(frozenset("p")), ("degraded", "", "bp")),
    ("retry", Degraded(frozenset("p")), ("degraded", "", "bp")),
    ("recovering", Degraded(frozenset("b")), ("degraded", "", "bp")),
    ("healthy", Degraded(frozenset("x")), None),
    ("degraded", Recovered(), None),
    ("healthy", Recovered(), None),
    ("recovering", Folded(frozenset("b"), 0, "", "B"), ("healthy", "p", "")),
    ("retry", Folded(frozenset("p"), 0, "", "P"), ("healthy", "b", "")),
    ("degraded", Folded(frozenset("p"), 0, "", "P"), ("healthy", "b", "")),
    ("healthy", Folded(frozenset("p"), 1, "", "P"), None),
    ("healthy", Folded(frozenset("p"), 0, "other", "P"), None),
    ("healthy", Folded(frozenset("x"), 0, "", "X"), None),
    ("healthy", Added(waiting("3")[0]), ("healthy", "p1", "b")),
    ("recovering", Added(waiting("3")[0]), ("recovering", "p1", "b")),
    ("degraded", Added(waiting("3")[0]), ("degraded", "p", "b1")),
]


@pytest.mark.parametrize(("health", "change", "wanted"), CHANGES)
def test_each_change_does_its_own_or_nothing(
    health: str, change: MemoryChange, wanted: tuple[str, str, str] | None
) -> None:
    state = State(
        MemoryHealth(health), turns=waiting("1", "2"), pending=waiting("p"), backlog=waiting("b")
    )
    before = state.copy()
    assert change.apply(state, Rules(config())) == (wanted is not None)
    if wanted is None:
        assert state == before
    else:
        lists = ("".join(t["id"] for t in turns) for turns in (state.pending, state.backlog))
        assert (state.health.value, *lists) == wanted


def test_a_degradation_without_a_backlog_ends() -> None:
    state = State(MemoryHealth.DEGRADED)
    assert Recovered().apply(state, Rules(config()))
    assert state.health == MemoryHealth.HEALTHY


@pytest.mark.parametrize(
    ("health", "recovering", "wanted"),
    [
        ("healthy", False, ("healthy", "bp", "")),
        ("retry", False, ("retry", "bp", "")),
        ("degraded", False, ("degraded", "p", "b")),
        ("recovering", False, ("degraded", "", "bp")),
        ("degraded", True, ("recovering", "p", "b")),
        ("recovering", True, ("recovering", "p", "b")),
        ("healthy", True, ("healthy", "bp", "")),
    ],
)
def test_a_state_that_was_read_is_gone_on_with(
    health: str, *, recovering: bool, wanted: tuple[str, str, str]
) -> None:
    state = State(MemoryHealth(health), pending=waiting("p"), backlog=waiting("b"))
    found = settled(state, recovering=recovering)
    lists = ("".join(t["id"] for t in turns) for turns in (found.pending, found.backlog))
    assert (found.health.value, *lists) == wanted
    assert [t["id"] for t in state.pending] == ["p"], "the state itself stays"


async def test_a_memory_without_a_store_is_this_objects_own() -> None:
    one, two = memory_of(None), memory_of(object())
    await one.add_turn(turn("1"))
    await one.hydrate()
    assert "1" in str(await one.get_llm_context())
    await two.hydrate()
    assert "1" not in str(await two.get_llm_context())
    assert one.get_artifact("ref") is None


@pytest.mark.parametrize(
    ("policy", "most", "wanted"),
    [
        ("truncate_oldest", 0, ""),
        ("truncate_oldest", 3, "defghij"),
        ("truncate_oldest", 4, "abcdefghij"),
        ("truncate_oldest", 1, "ij"),
        ("error", 4, "abcdefghij"),
        ("error", 2, None),
    ],
)
def test_a_summary_keeps_its_end_within_its_budget(
    policy: Any, most: int, wanted: str | None
) -> None:
    def count(text: str) -> int:
        return (len(text) + 2) // 3

    limits = {"summary_max_tokens": most, "overflow_policy": policy}
    rules = Rules(config(budget=limits, token_estimator=count))
    state = State(summary="abcdefghij")
    if wanted is None:
        with pytest.raises(MemoryBudgetExceeded, match="summary_max_tokens"):
            rules.fit_summary(state)
    else:
        rules.fit_summary(state)
        assert state.summary == wanted


@pytest.mark.parametrize("health", ["healthy", "degraded"])
@pytest.mark.parametrize("policy", ["truncate_summary", "truncate_oldest"])
def test_a_budget_that_nothing_fits_leaves_nothing(policy: Any, health: str) -> None:
    limits = {"summary_max_tokens": 1, "total_max_tokens": 1, "overflow_policy": policy}
    rules = Rules(config(budget=limits))
    state = State(MemoryHealth(health), "long " * 99, waiting("1", "2"), waiting("3"))
    rules.fit(state)
    assert (state.summary, state.turns, state.pending) == ("", [], [])


@given(
    total=st.integers(1, 60), size=st.integers(0, 300), turns=st.integers(0, 3), odd=st.booleans()
)
def test_shortening_ends_and_fits_whatever_an_estimator_says(
    *, total: int, size: int, turns: int, odd: bool
) -> None:
    def estimate(text: str) -> int:
        return len(text) % 7 + len(text) // 9 if odd else len(text) // 4 + 1

    limits: dict[str, Any] = {"summary_max_tokens": total // 2, "total_max_tokens": total}
    limits["overflow_policy"] = "truncate_summary"
    rules = Rules(config(budget=limits, token_estimator=estimate))
    state = State(summary="s" * size, turns=waiting(*map(str, range(turns))))
    rules.fit(state)
    assert rules.tokens(state) <= total or not (state.turns or state.summary)


def test_a_memory_shows_no_turn_in_its_repr() -> None:
    one = memory_of(None)
    one.from_dict({"version": 1, "health": "healthy", "summary": "secret"})
    assert repr(one) == "<SessionMemory healthy unsaved=1>"


def test_an_estimator_of_ones_own_is_used() -> None:
    def seven(text: str) -> int:
        return 7 * bool(text)

    one = memory_of(None, token_estimator=seven)
    assert one.estimate_tokens() == 7


def test_every_export_is_documented() -> None:
    assert all(getattr(memory, name).__doc__ for name in memory.__all__)
