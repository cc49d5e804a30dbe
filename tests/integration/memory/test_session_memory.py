"""One session's memory in several hands: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import (
    BackendUnavailable,
    InvalidField,
    MemoryBudgetExceeded,
    OutcomeUnknown,
    RedisStateStore,
    Settings,
    VersionConflict,
)
from redis_state.memory import MemoryHealth, SessionMemory, summarising
from redis_state.memory.state import REMEMBERED_IDS
from redis_state.testing import eventually
from tests.support.memory import (
    KEY,
    Summarizer,
    config,
    full_turn,
    memory_of,
    names_in,
    stored,
    turn,
)
from tests.support.samples import changed
from tests.support.servers.command_proxy import CommandProxy
from tests.support.servers.faults import Proxy, run_processes, start_process
from tests.support.sizes import sizes


async def test_a_turn_is_in_the_server_when_it_was_added(store: RedisStateStore) -> None:
    await memory_of(store).add_turn(full_turn("1"))
    other = memory_of(store)
    await other.hydrate()
    shown = {"user": "1", "assistant": "yes", "trajectory_digest": other_digest()}
    assert await other.get_llm_context() == {"conversation_memory": {"recent_turns": [shown]}}
    (kept,) = (await stored(store))["turns"]
    assert (kept["artifacts_shown"], kept["ts"]) == ({"a": {"b": [1]}}, 12.5)


async def until_saved(memory: SessionMemory) -> None:
    """Save as soon as the server can be reached again, however busy the machine is."""

    async def saved() -> bool:
        with contextlib.suppress(BackendUnavailable):
            await memory.persist()
        return memory.unsaved == 0

    await eventually(saved, "what waited is saved")


def other_digest() -> dict[str, Any]:
    return {
        "tools_invoked": ["search"],
        "observations_summary": "- search: 3 found",
        "reasoning_summary": "because",
        "artifacts_refs": ["a-1"],
    }


async def test_two_memories_that_read_the_same_keep_both_their_turns(
    store: RedisStateStore,
) -> None:
    one, two = memory_of(store), memory_of(store)
    await one.hydrate()
    await two.hydrate()
    await one.add_turn(turn("1"))
    await two.add_turn(turn("2"))
    await one.add_turn(turn("3"))
    await one.flush()
    assert names_in(await stored(store)) == ["1", "2", "3"]
    await two.hydrate()
    assert names_in(two.to_dict()) == ["1", "2", "3"]


async def test_a_turn_of_a_known_id_is_taken_once_by_whomever(store: RedisStateStore) -> None:
    one, two = memory_of(store), memory_of(store)
    for memory in (one, two, one):
        await memory.add_turn(turn("1"), turn_id="job-7")
    assert names_in(await stored(store)) == ["1"]
    for number in range(5):
        await one.add_turn(turn(f"later-{number}"))
    await one.flush()
    await two.add_turn(turn("1"), turn_id="job-7")
    assert Counter(names_in(await stored(store)))["1"] == 1


async def test_ids_are_remembered_so_far_back_and_no_further(store: RedisStateStore) -> None:
    memory = memory_of(store, strategy="truncation")
    state = memory.to_dict()
    state["known"] = [f"id-{number}" for number in range(REMEMBERED_IDS + 3)]
    memory.from_dict(state)
    await memory.add_turn(turn("known"), turn_id="id-4")
    await memory.add_turn(turn("forgotten"), turn_id="id-1")
    assert names_in(await stored(store)) == ["forgotten"]
    assert len((await stored(store))["known"]) == REMEMBERED_IDS


@pytest.mark.chaos
async def test_a_turn_whose_save_has_an_unknown_outcome_is_there_once(
    settings: Settings, store: RedisStateStore
) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url, call_timeout_s=2.0) as far,
    ):
        memory = memory_of(far)
        await memory.add_turn(turn("1"))
        proxy.silence()
        with pytest.raises(OutcomeUnknown):
            await memory.add_turn(turn("2"))
        assert proxy.swallowed
        assert memory.unsaved == 1
        assert names_in(await stored(store)) == ["1", "2"]
        proxy.silence(silent=False)
        proxy.cut()
        await until_saved(memory)
        await memory.add_turn(turn("3"))
    assert names_in(await stored(store)) == ["1", "2", "3"]


@pytest.mark.chaos
async def test_turns_that_cannot_be_saved_wait_and_are_merged_later(
    settings: Settings, store: RedisStateStore
) -> None:
    async with (
        Proxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url, call_timeout_s=1.0) as far,
    ):
        memory = memory_of(far)
        await memory.add_turn(turn("1"))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(BackendUnavailable):
            await memory.add_turn(turn("2"))
        assert proxy.cuts
        assert names_in(memory.to_dict()) == ["1", "2"]
        await memory_of(store).add_turn(turn("other"))
        proxy.refuse(refusing=False)
        await until_saved(memory)
        assert names_in(await stored(store)) == ["1", "other", "2"]


async def test_a_cancelled_add_is_not_doubled_by_the_next(store: RedisStateStore) -> None:
    memory = memory_of(store)
    await memory.hydrate()
    adding = asyncio.create_task(memory.add_turn(turn("1")))
    await asyncio.sleep(0)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    await memory.add_turn(turn("2"))
    await memory.persist()
    assert names_in(await stored(store)) == ["1", "2"]


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


async def test_a_memory_that_expired_begins_anew(store: RedisStateStore) -> None:
    memory = memory_of(store)
    await memory.add_turn(turn("old"))
    assert await store.memory.delete(KEY.composite())
    await memory.add_turn(turn("new"))
    assert names_in(await stored(store)) == ["new"]


async def test_a_document_that_cannot_be_read_is_set_aside_and_written_over(
    store: RedisStateStore,
) -> None:
    await store.memory.save(KEY.composite(), {})
    key = store.base.keys.memory(KEY.composite())
    await store.transport.sender.send("HSET", key, "document", "not JSON", repeatable=True)
    await memory_of(store).add_turn(turn("1"))
    assert names_in(await stored(store)) == ["1"]
    (aside,) = await store.unreadable(memory_key=KEY.composite())
    assert aside.row == "not JSON"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("health", "fine"),
        ("turns", "text"),
        ("pending", [1]),
        ("backlog", {"a": 1}),
    ],
)
async def test_a_document_that_is_no_memory_is_refused_by_name_and_left_alone(
    store: RedisStateStore, field: str, value: Any
) -> None:
    document = {"version": 1, "health": "healthy", field: value}
    await store.memory.save(KEY.composite(), document)
    memory = memory_of(store)
    for call in (memory.hydrate(), memory.add_turn(turn("1"))):
        with pytest.raises(InvalidField) as caught:
            await call
        assert caught.value.field == field
    assert await stored(store) == document


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


async def test_a_save_that_always_loses_gives_up_with_the_facts(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.memory.session._MOST_CONFLICTS", 2)

    async def overtake() -> None:
        await memory_of(store, strategy="truncation").add_turn(turn("faster"))

    async with (
        CommandProxy(store.settings.url.get_secret_value()) as proxy,
        changed(store.settings, url=proxy.url) as far,
    ):
        memory = memory_of(far)
        with (
            proxy.meanwhile("save_record", overtake, times=None),
            pytest.raises(VersionConflict) as caught,
        ):
            await memory.add_turn(turn("slow"))
        assert int(caught.value.actual) >= 1
        await memory.persist()
    assert names_in(await stored(store))[-1] == "slow"


async def test_nothing_is_read_or_written_by_the_strategy_none(store: RedisStateStore) -> None:
    memory = memory_of(store, strategy="none")
    await memory.add_turn(turn("1"))
    await memory.hydrate()
    await memory.persist()
    await memory.flush()
    assert await memory.get_llm_context() == {}
    assert await store.load_memory_state(KEY.composite()) is None


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
    gate.set()
    await closing
    assert reported == ["1"]


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


async def test_one_try_is_enough_where_nobody_else_saves(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.memory.session._MOST_CONFLICTS", 1)
    memory = memory_of(store)
    await memory.add_turn(turn("1"))
    assert names_in(await stored(store)) == ["1"]


Steps = list[tuple[int, str]]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from(["add", "add", "read", "flush", "fail", "begin"])
        ),
        max_size=25,
    )
)
def test_whatever_three_memories_do_every_turn_is_there_once(
    settings: Settings, steps: Steps
) -> None:
    async def play() -> None:
        async with RedisStateStore(settings) as store:
            await store.memory.delete(KEY.composite())
            summarizers = [Summarizer() for _ in range(3)]
            memories = [
                memory_of(store, summarizer=s, retry_attempts=1, degraded_retry_interval_s=0.0)
                for s in summarizers
            ]
            wanted: list[str] = []
            waiting: list[asyncio.Task[None]] = []
            for number, (who, what) in enumerate(steps):
                memory = memories[who]
                if what in {"add", "begin"}:
                    wanted.append(str(number))
                    waiting.append(asyncio.create_task(memory.add_turn(turn(number))))
                if what == "add":
                    await waiting[-1]
                elif what == "read":
                    await memory.hydrate()
                elif what == "flush":
                    await memory.flush()
                elif what == "fail":
                    summarizers[who].failures += 2
            await asyncio.gather(*waiting)
            for memory in memories:
                await memory.flush()
                await memory.aclose()
            found = names_in(await stored(store)) if wanted else []
            assert sorted(found) == sorted(wanted)

    asyncio.run(play())


@pytest.mark.slow
@pytest.mark.parametrize("processes", sizes(3, 8))
async def test_eight_processes_of_a_hundred_turns_lose_none_and_double_none(
    settings: Settings, store: RedisStateStore, processes: int
) -> None:
    here = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [{**here, "name": f"p{number}", "turns": 100} for number in range(processes)]
    ended = await run_processes("remember", arguments)
    assert all(result["asked"] for result in ended), "every process has summarised"
    found = names_in(await stored(store))
    assert Counter(found) == Counter(f"p{p}-{n}" for p in range(processes) for n in range(100))
    for p in range(processes):
        own = [name for name in found if name.startswith(f"p{p}-")]
        assert own == [f"p{p}-{n}" for n in range(100)], "a process's own turns keep their order"


@pytest.mark.chaos
async def test_a_process_that_dies_after_summarising_loses_no_turn(
    settings: Settings, store: RedisStateStore
) -> None:
    here = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    died = await start_process("remember", {**here, "name": "a", "turns": 5, "dies": "summarising"})
    out, _ = await died.communicate()
    assert died.returncode == -signal.SIGKILL
    assert json.loads(out) == ""
    before = names_in(await stored(store))
    assert before == [f"a-{n}" for n in range(len(before))]
    assert len(before) >= 3
    memory = memory_of(store)
    await memory.hydrate()
    await memory.add_turn(turn("b"))
    await memory.flush()
    assert names_in(await stored(store)) == [*before, "b"]
    assert (await stored(store))["pending"] == []


@pytest.mark.chaos
async def test_a_process_that_is_killed_while_it_saves_loses_nothing_it_was_told_is_saved(
    settings: Settings, store: RedisStateStore
) -> None:
    here = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    all_told = 0
    for life in range(4):
        argument = {**here, "name": f"life{life}", "turns": 10**6, "dies": "any time"}
        process = await start_process("remember", argument)
        assert process.stdout is not None
        for _ in range(20 + 7 * life):
            await process.stdout.readline()
        process.kill()
        rest, _ = await process.communicate()
        reported = 20 + 7 * life + sum(line.isdigit() for line in rest.split(b"\n")[:-1])
        assert process.returncode == -signal.SIGKILL
        found = [n for n in names_in(await stored(store)) if n.startswith(f"life{life}-")]
        # At most one more: saved, and not told any more.
        assert found in [[f"life{life}-{n}" for n in range(reported + more)] for more in (0, 1)]
        all_told += reported
    assert all_told <= len(names_in(await stored(store))) <= all_told + 4


def test_a_summarizer_is_needed_for_summaries() -> None:
    with pytest.raises(InvalidField) as caught:
        SessionMemory(None, KEY, config=config())
    assert caught.value.field == "summarizer"


async def test_the_key_of_another_session_is_refused(store: RedisStateStore) -> None:
    memory = memory_of(store)
    await memory.hydrate(store, "acme:ana:s-1")
    for call in (memory.hydrate(store, "acme:ana:s-2"), memory.persist(store, "acme:eve:s-1")):
        with pytest.raises(InvalidField) as caught:
            await call
        assert caught.value.field == "key"


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
    async with asyncio.timeout(5), RedisStateStore(settings) as own:
        memory = memory_of(own, summarizer=summarizer)
        for name in "abc":
            await memory.add_turn(turn(name))
    found = await stored(store)
    assert (found["summary"], [each["user_message"] for each in found["pending"]]) == ("", ["a"])


async def test_what_a_memory_shows_of_itself_belongs_to_whoever_asked(
    store: RedisStateStore,
) -> None:
    memory = memory_of(store)
    added: Any = full_turn("1")
    added.trajectory_digest.tools_invoked = [{"tool": ["t"]}]
    await memory.add_turn(added)
    before, context = json.dumps(memory.to_dict()), json.dumps(await memory.get_llm_context())
    shown: Any = await memory.get_llm_context()
    for digest in (
        memory.to_dict()["turns"][0]["trajectory_digest"],
        shown["conversation_memory"]["recent_turns"][0]["trajectory_digest"],
    ):
        digest["tools_invoked"][0]["tool"].append("masked")
        digest.clear()
    memory.to_dict()["turns"][0]["artifacts_shown"].clear()
    assert json.dumps(memory.to_dict()) == before
    assert json.dumps(await memory.get_llm_context()) == context
    given = memory.to_dict()
    memory.from_dict(given)
    given["turns"][0]["artifacts_shown"]["a"]["b"].append("masked")
    assert json.dumps(memory.to_dict()["turns"]) == json.dumps(json.loads(before)["turns"])
