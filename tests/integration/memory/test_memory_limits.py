"""A memory stays within its budget, and holds back no more than so many unsaved turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redis_state import (
    InvalidField,
    MemoryBudgetExceeded,
    RedisStateStore,
)
from tests.support.memory import (
    KEY,
    memory_of,
    names_in,
    stored,
    turn,
)


async def test_the_summary_is_cut_for_the_totals_sake_but_not_more_than_needed(
    store: RedisStateStore,
) -> None:
    budget = {
        "full_zone_turns": 1,
        "summary_max_tokens": 50,
        "total_max_tokens": 90,
        "overflow_policy": "truncate_summary",
    }
    memory = memory_of(store, budget=budget)
    for number in range(20):
        await memory.add_turn(turn(f"turn-{number}"))
        await memory.flush()
    summary = (await stored(store))["summary"]
    assert summary.endswith("turn-18")
    await memory.add_turn(turn("x" * 120))
    shown = (await memory.get_llm_context())["conversation_memory"]
    assert memory.estimate_tokens() <= 90
    assert [recent["user"] for recent in shown["recent_turns"]] == ["x" * 120]
    assert summary.endswith(shown["summary"])
    assert len(shown["summary"]) < len(summary)
    one_more = replace(memory.state, summary=summary[-len(shown["summary"]) - 1 :])
    assert memory.rules.tokens(one_more) > 90


async def test_a_turn_that_the_policy_refuses_is_not_taken(store: RedisStateStore) -> None:
    budget = {"summary_max_tokens": 10, "total_max_tokens": 40, "overflow_policy": "error"}
    memory = memory_of(store, budget=budget)
    await memory.add_turn(turn("1"))
    with pytest.raises(MemoryBudgetExceeded, match="total_max_tokens"):
        await memory.add_turn(turn("x" * 500))
    assert memory.unsaved == 0
    assert names_in(memory.to_dict()) == names_in(await stored(store)) == ["1"]


async def test_a_turn_that_only_the_others_turns_make_too_much_is_refused_too(
    store: RedisStateStore,
) -> None:
    budget = {
        "full_zone_turns": 9,
        "summary_max_tokens": 10,
        "total_max_tokens": 40,
        "overflow_policy": "error",
    }
    one, two = memory_of(store, budget=budget), memory_of(store, budget=budget)
    await two.hydrate()
    await one.add_turn(turn("x" * 80))
    with pytest.raises(MemoryBudgetExceeded):
        await two.add_turn(turn("y" * 80))
    await two.hydrate()
    assert names_in(two.to_dict()) == names_in(await stored(store)) == ["x" * 80]


async def test_unsaved_turns_are_not_heaped_up_without_end(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.memory.session._MOST_UNSAVED", 3)
    await store.memory.save(KEY.composite(), {"version": 2})
    memory = memory_of(store, budget={"full_zone_turns": 9})
    for number in range(5):
        with pytest.raises(InvalidField):
            await memory.add_turn(turn(number))
    assert memory.unsaved == 3
