"""Callbacks of a memory, and its closing: what still runs is waited for, for so long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redis_state import (
    RedisStateStore,
    Settings,
)
from redis_state.testing import eventually
from tests.support.memory import (
    Summarizer,
    memory_of,
    names_in,
    stored,
    turn,
)


async def test_callbacks_are_told_and_their_errors_change_nothing(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[Any] = []

    async def added(given_turn: Any) -> None:
        reported.append(given_turn.user_message)

    async def summarised(old: str, new: str) -> None:
        reported.append((old, new))
        raise RuntimeError("a secret of the host")

    memory = memory_of(store, on_turn_added=added, on_summary_updated=summarised)
    for number in range(3):
        await memory.add_turn(turn(number))
    await memory.flush()
    await memory.aclose()
    assert reported == ["0", "1", "2", ("", "0")]
    assert "a callback of a memory failed: RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_closing_waits_for_callbacks(store: RedisStateStore) -> None:
    gate, reported = asyncio.Event(), list[str]()

    async def added(given_turn: Any) -> None:
        await gate.wait()
        reported.append(given_turn.user_message)

    memory = memory_of(store, on_turn_added=added)
    await memory.add_turn(turn("1"))
    closing = asyncio.create_task(memory.aclose())
    await asyncio.wait({closing}, timeout=0.1)
    assert not closing.done()
    gate.set()
    await closing
    assert reported == ["1"]


async def test_a_store_that_is_closed_lets_a_memory_finish_and_save(
    store: RedisStateStore, settings: Settings
) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    async with RedisStateStore(settings) as own:
        memory = memory_of(own, summarizer=summarizer)
        for name in "abc":
            await memory.add_turn(turn(name))
        await eventually(lambda: bool(summarizer.requested), "a summary is being made")
        asyncio.get_running_loop().call_later(0.05, summarizer.gate.set)
    found = await stored(store)
    assert (found["summary"], names_in(found)) == ("a", ["a", "b", "c"])


async def test_a_store_that_is_closed_leaves_the_memories_of_another_loop_alone(
    settings: Settings,
) -> None:
    left: list[str] = []

    class User:
        async def leave(self, store: Any, *, timeout_s: float) -> None:
            assert timeout_s > 0
            assert store is own
            left.append("left")

    user, own = User(), RedisStateStore(settings)

    async def use() -> None:
        own.memory.add_user(user)

    await asyncio.to_thread(asyncio.run, use())
    await own.aclose()
    assert left == []
    own.memory.add_user(user)
    await own.aclose()
    await own.aclose()
    assert left == ["left"]


async def test_a_memory_that_cannot_finish_holds_a_closing_store_up_no_longer_than_it_says(
    store: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.store._SUMMARIES_S", 0.05)
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    async with asyncio.timeout(30), RedisStateStore(settings) as own:
        memory = memory_of(own, summarizer=summarizer)
        for name in "abc":
            await memory.add_turn(turn(name))
    found = await stored(store)
    assert (found["summary"], [each["user_message"] for each in found["pending"]]) == ("", ["a"])
