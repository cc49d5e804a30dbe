"""Planners of the pool with a memory: what they remember is there when their task is over."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")
pytest.importorskip("arq", reason="needs the worker extra")

from penguiflow.planner import ReactPlanner
from penguiflow.planner.memory import (
    DefaultShortTermMemory,
    MemoryBudget,
    ShortTermMemoryConfig,
)

from redis_state import BackendUnavailable, RedisStateStore, Settings
from redis_state.integrations.penguiflow import create_memory, create_store
from redis_state.integrations.penguiflow.planners import planner_handler
from redis_state.memory import MemoryKey, PlannerMemory
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from tests.processes.penguiflow.plan_once import AFTER, BEFORE, make_planner
from tests.support.memory import Summarizer, names_in, turn
from tests.support.penguiflow.planner import Model, planner_of
from tests.support.processes.pools import SESSION, becomes, open_token, pool

pytestmark = pytest.mark.worker
OF = {"tenant_id": "acme", "user_id": "ana"}
KEY = f"acme:ana:{SESSION}"


class TerseModel(Model):
    """Answers a request for a summary as PenguiFlow's own memory can read it."""

    async def complete(self, **request: Any) -> str | tuple[str, float]:
        """Say nothing but JSON."""
        stated = await super().complete(**request)
        return stated if isinstance(stated, str) else stated[0].removeprefix("Here: ")


def config() -> ShortTermMemoryConfig:
    budget = MemoryBudget(full_zone_turns=1, summary_max_tokens=10**6, total_max_tokens=0)
    return ShortTermMemoryConfig(strategy="rolling_summary", budget=budget)


def memory_of(summarizer: Any) -> PlannerMemory:
    return create_memory(config(), summarizer=summarizer)


def requested(name: str) -> dict[str, Any]:
    return {"query": name, "tool_context": OF}


async def document(store: RedisStateStore) -> dict[str, Any]:
    found = await store.load_memory_state(KEY)
    assert found is not None
    return found


@pytest.mark.parametrize("shared", [True, False])
async def test_a_slow_summary_is_in_the_store_when_the_task_is_over(
    store: RedisStateStore, *, shared: bool
) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    one = memory_of(summarizer)
    stores: list[weakref.ref[Any]] = []

    def build(own: Any, _: Any) -> Any:
        stores.append(weakref.ref(own))
        return planner_of(own, one if shared else memory_of(summarizer), Model())

    async with pool(store, {"plan": planner_handler(build)}) as client:
        first = await client.submit("plan", requested("q0"), session_id=SESSION)
        await becomes(client, first, TaskStatus.COMPLETE)
        second = await client.submit("plan", requested("q1"), session_id=SESSION)
        await eventually(lambda: bool(summarizer.requested), "a summary is being made")
        state = await client.get(SESSION, second)
        assert state is not None
        assert state.status is TaskStatus.RUNNING
        summarizer.gate.set()
        await becomes(client, second, TaskStatus.COMPLETE)
        found = await document(store)
        assert found["summary"] == "q0"
        assert [each["user_message"] for each in found["turns"]] == ["q1"]
        assert found["pending"] == []

        def gone() -> bool:
            gc.collect()
            return all(ref() is None for ref in stores)

        await eventually(gone, "nothing keeps the stores of what is over")


async def test_a_summary_that_takes_too_long_is_left_to_the_next_task(
    store: RedisStateStore,
) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()

    def build(own: Any, _: Any) -> Any:
        return planner_of(own, memory_of(summarizer), Model())

    async with pool(store, {"plan": planner_handler(build, summary_s=0.1)}) as client:
        for name in ("q0", "q1"):
            task = await client.submit("plan", requested(name), session_id=SESSION)
            await becomes(client, task, TaskStatus.COMPLETE)
        found = await document(store)
        assert found["summary"] == ""
        assert [each["user_message"] for each in found["pending"]] == ["q0"]
        summarizer.gate.set()
        task = await client.submit("plan", requested("q2"), session_id=SESSION)
        await becomes(client, task, TaskStatus.COMPLETE)
    found = await document(store)
    assert found["summary"] == "q0 q1"
    assert names_in(found) == ["q0", "q1", "q2"]


async def test_a_run_that_begins_again_adds_its_turn_once(store: RedisStateStore) -> None:
    runs: list[str] = []

    def build(own: Any, _: Any) -> Any:
        planner = planner_of(own, memory_of(Summarizer()), Model())
        run = planner.run

        async def run_and_die(*given: Any, **options: Any) -> Any:
            outcome = await run(*given, **options)
            runs.append(given[0])
            if len(runs) == 1:
                raise BackendUnavailable("server", "the run ends before its step is noted")
            return outcome

        planner.__dict__["run"] = run_and_die
        return planner

    async with pool(store, {"plan": planner_handler(build)}) as client:
        for name in ("q0", "q1"):
            task = await client.submit("plan", requested(name), session_id=SESSION)
            await becomes(client, task, TaskStatus.COMPLETE, timeout_s=30)
    assert runs == ["q0", "q0", "q1"]
    assert names_in(await document(store)) == ["q0", "q1"]


async def test_names_with_colons_have_a_memory_each_in_the_pool(
    store: RedisStateStore, tmp_path: Path
) -> None:
    memory: Any = memory_of(Summarizer())
    kind = partial(ReactPlanner, short_term_memory=memory)
    names = {"q0": ("did:plc:1", "ana"), "q1": ("did", "plc:1:ana")}

    def build(own: Any, _: Any) -> Any:
        return make_planner(own, tmp_path / "effects", next(stretches), kind)

    async with pool(store, {"plan": planner_handler(build)}) as client:
        for query, (tenant, user) in names.items():
            stretches = iter([BEFORE, AFTER])
            context = {"tenant_id": tenant, "user_id": user}
            asking = {"query": query, "tool_context": context}
            task = await client.submit("plan", asking, session_id=SESSION)
            await client.approve(await open_token(store, task), "yes")
            await becomes(client, task, TaskStatus.COMPLETE)
    for query, (tenant, user) in names.items():
        key = MemoryKey(tenant, user, SESSION).composite()
        found = await store.load_memory_state(key)
        assert found is not None
        assert names_in(found) == [query]


async def test_a_memory_that_cannot_be_read_says_why_in_the_log(
    settings: Settings, stores: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    stores.append(create_store(url=settings.url.get_secret_value(), namespace=settings.namespace))
    planner = planner_of(stores[0], memory_of(Summarizer()), Model())
    context = {"tenant_id": "did:plc:1", "user_id": "ana", "session_id": SESSION}
    with caplog.at_level(logging.WARNING, "redis_state"):
        await planner.run("q0", tool_context=context)
    (reason,) = [line for line in caplog.messages if "cannot be read" in line]
    assert "ambiguous: pass a MemoryKey" in reason
    assert "did:plc" not in caplog.text


async def test_twenty_planners_of_a_session_with_a_configuration_keep_all_their_turns_in_the_pool(
    store: RedisStateStore,
) -> None:
    def build(own: Any, _: Any) -> Any:
        return planner_of(own, config(), TerseModel())

    names = [f"q{number}" for number in range(20)]
    async with pool(store, {"plan": planner_handler(build)}, max_tasks=20) as client:
        tasks = [await client.submit("plan", requested(name), session_id=SESSION) for name in names]
        for task in tasks:
            await becomes(client, task, TaskStatus.COMPLETE)
    found = await document(store)
    summary: str = found["summary"].removeprefix("<session_summary>")
    found["summary"] = summary.removesuffix("</session_summary>")
    assert sorted(names_in(found)) == sorted(names)
    assert len(found["summary"].split()) == 19
    assert found["health"] == "healthy"


async def test_a_memory_object_of_another_kind_is_finished_and_named_in_the_log(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    summarizer = Summarizer()

    def build(own: Any, _: Any) -> Any:
        memory = DefaultShortTermMemory(config=config(), summarizer=summarizer)
        return planner_of(own, memory, Model())

    async with pool(store, {"plan": planner_handler(build)}) as client:
        for name in ("q0", "q1", "q2"):
            task = await client.submit("plan", requested(name), session_id=SESSION)
            await becomes(client, task, TaskStatus.COMPLETE)
    found = await document(store)
    assert (found["summary"], names_in(found)) == ("q0 q1", ["q0", "q1", "q2"])
    reported = [line for line in caplog.messages if "a DefaultShortTermMemory overwrites" in line]
    assert len(reported) == 1


async def test_a_store_that_is_closed_lets_its_memories_finish_their_summaries(
    store: RedisStateStore, settings: Settings
) -> None:
    summarizer = Summarizer()
    summarizer.gate = asyncio.Event()
    own = create_store(url=settings.url.get_secret_value(), namespace=settings.namespace)
    planner = planner_of(own, memory_of(summarizer), Model())
    for name in ("q0", "q1"):
        await planner.run(name, tool_context={**OF, "session_id": SESSION})
    await eventually(lambda: bool(summarizer.requested), "a summary is being made")
    asyncio.get_running_loop().call_later(0.05, summarizer.gate.set)
    await own.aclose()
    found = await document(store)
    assert (found["summary"], names_in(found)) == ("q0", ["q0", "q1"])


@pytest.fixture
async def stores(settings: Settings) -> AsyncIterator[list[Any]]:
    made: list[Any] = []
    yield made
    for each in made:
        await each.aclose()


def test_a_store_at_the_address_of_an_earlier_one_has_sessions_of_its_own() -> None:
    memory = memory_of(Summarizer())
    for _ in range(50):
        store = create_store(url="redis://localhost:1/0")
        session = memory.session(store, KEY)
        assert session._document.__dict__["_store"] is store.memory
        del store, session
        gc.collect(0)


async def test_a_memory_leaves_one_store_and_keeps_the_others(
    settings: Settings, stores: list[Any]
) -> None:
    url = settings.url.get_secret_value()
    stores += [create_store(url=url, namespace=settings.namespace) for _ in range(2)]
    memory = memory_of(Summarizer())
    first, second = (memory.session(store, KEY) for store in stores)
    await first.add_turn(turn("a"))
    await first.add_turn(turn("b"))
    await memory.leave(stores[0], timeout_s=5)
    assert first.unsaved == 0
    assert memory.session(stores[1], KEY) is second
    assert memory.session(stores[0], KEY) is not first
    await second.hydrate()
    assert names_in(second.to_dict()) == ["a", "b"]
    assert second.to_dict()["summary"] == "a"
