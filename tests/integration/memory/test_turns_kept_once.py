"""One session's memory in several hands: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import (
    BackendUnavailable,
    OutcomeUnknown,
    RedisStateStore,
    Settings,
)
from redis_state.memory.state import REMEMBERED_IDS
from tests.support.memory import (
    KEY,
    Summarizer,
    full_turn,
    memory_of,
    names_in,
    stored,
    turn,
    until_saved,
)
from tests.support.samples import changed
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
