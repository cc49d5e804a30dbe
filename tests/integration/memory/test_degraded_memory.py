"""A memory whose summaries fail keeps its turns, and one process recovers it."""

from __future__ import annotations

import asyncio
from typing import Any

from redis_state import (
    RedisStateStore,
)
from redis_state.memory import SessionMemory
from redis_state.testing import eventually
from tests.support.memory import (
    KEY,
    Summarizer,
    memory_of,
    names_in,
    stored,
    turn,
)


async def degraded(store: Any, **more: Any) -> tuple[SessionMemory, Summarizer]:
    summarizer = Summarizer()
    summarizer.failures = 1
    memory = memory_of(store, summarizer=summarizer, retry_attempts=0, **more)
    for number in range(3):
        await memory.add_turn(turn(number))
    await memory.flush()
    assert memory.health == "degraded"
    return memory, summarizer


async def test_a_degraded_memory_shows_recent_turns_and_another_process_recovers_it(
    store: RedisStateStore,
) -> None:
    memory, _ = await degraded(store, degraded_retry_interval_s=10**9)
    await memory.add_turn(turn(3))
    shown = (await memory.get_llm_context())["conversation_memory"]
    assert [recent["user"] for recent in shown["recent_turns"]] == ["2", "3"]
    assert set(shown) == {"recent_turns"}
    assert [kept["user_message"] for kept in (await stored(store))["backlog"]] == ["0", "1"]
    await memory.aclose()

    other = memory_of(store, degraded_retry_interval_s=0.0)
    await other.hydrate()
    assert other.health == "degraded"
    await other.add_turn(turn(4))
    await other.flush()
    assert other.health == "healthy"
    assert names_in(await stored(store)) == ["0", "1", "2", "3", "4"]
    assert (await stored(store))["backlog"] == []


async def test_a_recovery_that_fails_degrades_again_and_one_that_dies_is_done_by_another(
    store: RedisStateStore,
) -> None:
    memory, summarizer = await degraded(store, degraded_retry_interval_s=0.0)
    summarizer.failures = 1
    await memory.add_turn(turn(3))
    await memory.flush()
    assert memory.health == "degraded"
    summarizer.gate = asyncio.Event()
    await memory.add_turn(turn(4))
    await eventually(lambda: memory.health == "recovering", "it recovers")
    await memory.hydrate()
    assert memory.health == "recovering", "its own attempt goes on"
    await memory.add_turn(turn(5))
    assert (await stored(store))["health"] == "recovering"
    # The process is gone here: its memory is never used again.
    other = memory_of(store, degraded_retry_interval_s=0.0)
    await other.hydrate()
    assert other.health == "degraded"
    await other.add_turn(turn(6))
    await other.flush()
    assert other.health == "healthy"
    assert names_in(await stored(store)) == [str(number) for number in range(7)]
    await memory.aclose()
    assert names_in(await stored(store)) == [str(number) for number in range(7)]


async def test_a_recovery_that_another_process_was_faster_with_keeps_its_result(
    store: RedisStateStore,
) -> None:
    memory, summarizer = await degraded(store, degraded_retry_interval_s=0.0)
    summarizer.gate = asyncio.Event()
    await memory.add_turn(turn(3))
    await eventually(lambda: memory.health == "recovering", "it recovers")
    other = memory_of(store, degraded_retry_interval_s=0.0)
    await other.hydrate()
    await other.add_turn(turn(4))
    await other.flush()
    await memory.add_turn(turn(5))
    assert memory.health == "healthy"
    summarizer.gate.set()
    await memory.flush()
    assert names_in(await stored(store)) == [str(number) for number in range(6)]


async def test_a_recovery_that_came_too_late_for_a_new_degradation_is_done_anew(
    store: RedisStateStore,
) -> None:
    memory, summarizer = await degraded(store, degraded_retry_interval_s=0.0)
    summarizer.gate = asyncio.Event()
    await memory.add_turn(turn(3))
    await eventually(lambda: len(summarizer.requested) == 2, "it recovers")
    document = await stored(store)
    first, second = document["backlog"]
    meanwhile = {"folds": 7, "summary": first["user_message"], "backlog": [second]}
    await store.save_memory_state(KEY.composite(), {**document, **meanwhile})
    await memory.hydrate()
    summarizer.gate.set()
    await memory.flush()
    assert memory.health == "degraded"
    await memory.add_turn(turn(4))
    await memory.flush()
    assert memory.health == "healthy"
    assert names_in(await stored(store)) == ["0", "1", "2", "3", "4"]


async def test_a_degradation_that_came_too_late_changes_nothing(store: RedisStateStore) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    summarizer.failures = 1
    one = memory_of(store, summarizer=summarizer, retry_attempts=0)
    two = memory_of(store)
    for number in range(3):
        await one.add_turn(turn(number))
    await eventually(lambda: summarizer.requested, "the summarizer is asked")
    await two.add_turn(turn(3))
    await two.flush()
    summarizer.gate.set()
    await one.flush()
    assert (await stored(store))["health"] == "healthy"
    await one.hydrate()
    assert one.health == "healthy"
    assert names_in(one.to_dict()) == ["0", "1", "2", "3"]


async def test_an_empty_backlog_is_recovered_without_asking(store: RedisStateStore) -> None:
    memory, summarizer = await degraded(
        store, recovery_backlog_limit=0, degraded_retry_interval_s=0.0
    )
    requested = len(summarizer.requested)
    await memory.add_turn(turn(3))
    await memory.flush()
    assert memory.health == "healthy"
    assert len(summarizer.requested) == requested
    await memory.add_turn(turn(4))
    await memory.flush()
    assert (await stored(store))["summary"] == "2"
