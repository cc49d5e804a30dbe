"""Summaries of a memory: no turn is lost while one is made, and one that fails is made again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from redis_state import (
    RedisStateStore,
    Settings,
)
from redis_state.memory import MemoryHealth, summarising
from redis_state.testing import eventually
from tests.support.memory import (
    KEY,
    Summarizer,
    memory_of,
    names_in,
    stored,
    turn,
    until_saved,
)
from tests.support.samples import changed
from tests.support.servers.faults import Proxy


async def test_turns_that_come_while_a_summary_is_made_are_kept(store: RedisStateStore) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    one, two = memory_of(store, summarizer=summarizer), memory_of(store)
    for number in range(3):
        await one.add_turn(turn(number))
    await eventually(lambda: summarizer.requested, "the summarizer is asked")
    await one.add_turn(turn(3))
    await two.add_turn(turn(4))
    summarizer.gate.set()
    await one.flush()
    await two.flush()
    assert names_in(await stored(store)) == ["0", "1", "2", "3", "4"]
    assert (await stored(store))["pending"] == []


async def test_of_two_summaries_of_the_same_turns_one_is_kept(store: RedisStateStore) -> None:
    summarizers = [Summarizer(), Summarizer()]
    gate = asyncio.Event()
    for summarizer in summarizers:
        summarizer.gate = gate
    one, two = (memory_of(store, summarizer=summarizer) for summarizer in summarizers)
    for number in range(3):
        await one.add_turn(turn(number))
    await two.hydrate()
    await two.add_turn(turn(3))
    await eventually(lambda: all(s.requested for s in summarizers), "both are asked")
    gate.set()
    await asyncio.gather(one.flush(), two.flush())
    assert names_in(await stored(store)) == ["0", "1", "2", "3"]


async def test_a_summary_is_saved_without_anybody_asking(store: RedisStateStore) -> None:
    memory = memory_of(store)
    for number in range(3):
        await memory.add_turn(turn(number))

    async def saved() -> bool:
        return names_in(await stored(store))[0] == "0" and not (await stored(store))["pending"]

    await eventually(saved, "the summary is saved")
    assert (await stored(store))["health"] == "healthy"


async def test_a_failed_summary_is_tried_again_by_itself(store: RedisStateStore) -> None:
    summarizer = Summarizer()
    summarizer.failures = 2
    healths: list[tuple[str, str]] = []

    async def changed_to(old: MemoryHealth, new: MemoryHealth) -> None:
        healths.append((old.value, new.value))

    memory = memory_of(store, summarizer=summarizer, on_health_changed=changed_to)
    for number in range(3):
        await memory.add_turn(turn(number))
    await eventually(lambda: memory.health == "healthy" and healths, "it recovers by itself")
    await memory.flush()
    assert healths == [("healthy", "retry"), ("retry", "healthy")]
    assert len(summarizer.requested) == 3
    assert names_in(await stored(store)) == ["0", "1", "2"]


async def test_pauses_between_attempts_grow(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with_sleep = SimpleNamespace(create_task=asyncio.create_task, wait=asyncio.wait, sleep=sleep)
    monkeypatch.setattr(summarising, "asyncio", with_sleep)
    summarizer = Summarizer()
    summarizer.failures = 4
    memory = memory_of(store, summarizer=summarizer, retry_backoff_base_s=5.0)
    for number in range(3):
        await memory.add_turn(turn(number))
    await memory.flush()
    assert memory.health == "degraded"
    assert pauses == [5.0, 10.0, 20.0]


async def test_flushing_summarises_what_another_left_waiting(store: RedisStateStore) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    one = memory_of(store, summarizer=summarizer)
    for number in range(4):
        await one.add_turn(turn(number))
    await one.aclose()
    assert len((await stored(store))["pending"]) == 2
    other = memory_of(store)
    await other.hydrate()
    await other.flush()
    assert (await stored(store))["summary"] == "0 1"


async def test_what_waited_stays_where_nothing_is_summarised_any_more(
    store: RedisStateStore,
) -> None:
    state = memory_of(store).to_dict()
    row = {"user_message": "1", "assistant_response": "yes"}
    await store.save_memory_state(KEY.composite(), {**state, "pending": [row]})
    memory = memory_of(store, strategy="truncation")
    await memory.hydrate()
    await memory.flush()
    await memory.add_turn(turn("2"))
    assert names_in(await stored(store)) == ["1", "2"]
    assert "1" not in str(await memory.get_llm_context()).replace("conversation_memory", "")


async def test_a_retry_ends_when_another_process_has_degraded_the_memory(
    store: RedisStateStore,
) -> None:
    summarizer = Summarizer()
    summarizer.failures = 9
    memory = memory_of(store, summarizer=summarizer, retry_backoff_base_s=0.2)
    for number in range(3):
        await memory.add_turn(turn(number))
    await eventually(lambda: memory.health == "retry", "an attempt has failed")
    document = await stored(store)
    moved: dict[str, Any] = {"health": "degraded", "backlog": document["pending"], "pending": []}
    await store.save_memory_state(KEY.composite(), {**document, **moved})
    await memory.hydrate()
    await memory.flush()
    await eventually(lambda: memory.idle, "the attempts end")
    assert len(summarizer.requested) == 1
    assert names_in(await stored(store)) == ["0", "1", "2"]


@pytest.mark.parametrize("answer", [None, "text", {"other": 1}, {"summary": None}])
async def test_an_answer_without_a_summary_is_a_failed_attempt(
    store: RedisStateStore, answer: Any
) -> None:
    async def odd(_: Any) -> Any:
        return answer

    memory = memory_of(store, summarizer=odd, retry_attempts=0)
    for number in range(3):
        await memory.add_turn(turn(number))
    await memory.flush()
    assert memory.health == "degraded"


@pytest.mark.chaos
async def test_a_summary_that_cannot_be_saved_is_saved_with_the_next_change(
    settings: Settings, store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url, call_timeout_s=1.0) as far,
    ):
        memory = memory_of(far, summarizer=summarizer)
        for number in range(3):
            await memory.add_turn(turn(number))
        proxy.refuse()
        proxy.cut()
        summarizer.gate.set()
        await eventually(lambda: "could not be saved" in caplog.text, "saving fails")
        assert (await stored(store))["summary"] == ""
        proxy.refuse(refusing=False)
        await until_saved(memory)
        await memory.add_turn(turn(3))
        await memory.flush()
    document = await stored(store)
    assert names_in(document) == ["0", "1", "2", "3"]
    assert document["summary"] == "0 1"
    assert summarizer.requested == [["0"], ["1"]]
