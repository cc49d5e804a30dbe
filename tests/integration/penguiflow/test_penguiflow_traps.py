"""Traps that only PenguiFlow's own runtime walks into: its planner, its KV, its sessions.

| trap | test |
| --- | --- |
| each feature's methods are there, by PenguiFlow's own check | `..._feature...` |
| application data of a pause may be anything | `..._pause_payload...` |
| an empty pause is a pause; the planner calls it a broken one | `..._empty_pause...` |
| observations and metadata of a real run may be anything | `..._observations...` |
| planner events are in order, though clocks jump | `..._planner_events...` |
| ``ctx.kv`` takes any key, and keeps large values | `..._kv...` |
| falsy results of a session's task are results | `..._falsy...` |
| updates fired in a row, unawaited, come back in order, for a subscriber too | `..._in_a_row...` |
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("penguiflow.state", reason="needs the published package")

from penguiflow.artifacts import ArtifactStore
from penguiflow.catalog import build_catalog, tool
from penguiflow.node import Node
from penguiflow.planner import PlannerPause, ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from penguiflow.sessions import StreamingSession, TaskResult, TaskRuntime
from penguiflow.sessions.persistence import SessionStateStore
from penguiflow.state import StateUpdate, UpdateType, protocol, require_capabilities
from pydantic import BaseModel

from redis_state import Settings
from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.sessions import WatchedStore, open_session
from tests.processes.penguiflow.plan_once import CONTEXT, Script, Words
from tests.support.samples import ODD_IDS

PROTOCOLS: list[Any] = [
    protocol.StateStore,
    protocol.SupportsPlannerState,
    protocol.SupportsConversationBindings,
    protocol.SupportsMemoryState,
    protocol.SupportsTasks,
    protocol.SupportsSteering,
    protocol.SupportsTrajectories,
    protocol.SupportsPlannerEvents,
    protocol.SupportsArtifacts,
    SessionStateStore,
]


@pytest.fixture
async def pair(settings: Settings) -> AsyncIterator[tuple[Any, Any]]:
    """Give the store as two processes have it."""
    url, namespace = settings.url.get_secret_value(), settings.namespace
    one, other = (create_store(url=url, namespace=namespace) for _ in range(2))
    yield one, other
    await one.aclose()
    await other.aclose()


def members(wanted: type) -> list[str]:
    return sorted(name for name in vars(wanted) if not name.startswith("_"))


@pytest.mark.parametrize("wanted", PROTOCOLS, ids=lambda wanted: wanted.__name__)
def test_each_features_methods_are_there_and_take_what_is_passed(wanted: Any) -> None:
    store: Any = create_store(url="redis://localhost:1")
    names = members(wanted)
    assert names
    require_capabilities(store, feature=wanted.__name__, methods=names)
    for name in names:
        theirs = inspect.getattr_static(wanted, name)
        if isinstance(theirs, property):
            continue
        given = inspect.signature(getattr(store, name)).parameters
        requested = list(inspect.signature(theirs).parameters)[1:]
        missing = [
            each for each in requested if each not in given and each not in {"args", "kwargs"}
        ]
        assert not missing, (name, missing)


def test_the_artifact_store_is_one_and_a_session_takes_the_store() -> None:
    store: Any = create_store(url="redis://localhost:1")
    assert isinstance(store.artifact_store, ArtifactStore)
    require_capabilities(store.artifact_store, feature="artifacts", methods=members(ArtifactStore))
    for given in (store, WatchedStore(store)):
        require_capabilities(given, feature="sessions", methods=members(SessionStateStore))
        assert StreamingSession("session", state_store=given)._state_store is given


class Anything(BaseModel):
    """What a tool may answer."""

    text: str
    value: Any = None


class Odd:
    """Something that JSON lacks."""


def planner_with(store: Any, function: Any, lines: list[dict[str, Any]], **options: Any) -> Any:
    registry = ModelRegistry()
    registry.register("act", Words, Anything)
    act = tool(desc="does something")(function)
    return ReactPlanner(
        llm_client=Script(lines),
        catalog=build_catalog([Node(act, name="act")], registry),
        state_store=store,
        **options,
    )


ACT: dict[str, Any] = {"thought": "t", "next_node": "act", "args": {"text": "x"}}
END: dict[str, Any] = {"thought": "t", "next_node": None, "args": {"answer": "done"}}


async def test_a_pause_payload_of_anything_is_resumed_by_another_process(
    pair: tuple[Any, Any],
) -> None:
    async def act(args: Words, ctx: ToolContext) -> Anything:
        await ctx.pause("approval_required", {"object": Odd(), "set": {2, 1}, "bytes": b"\xff"})
        raise AssertionError

    one, other = pair
    paused = await planner_with(one, act, [ACT]).run("q", tool_context=CONTEXT)
    assert isinstance(paused, PlannerPause)
    resumer = planner_with(other, act, [END])
    done = await resumer.resume(paused.resume_token, "yes", tool_context=CONTEXT)
    (step,) = done.metadata["steps"]
    assert step["action"]["next_node"] == "act"
    assert done.payload["raw_answer"] == "done"


async def test_an_empty_pause_is_kept_and_a_missing_one_is_not_there(
    pair: tuple[Any, Any],
) -> None:
    async def act(args: Words, ctx: ToolContext) -> Anything:
        raise AssertionError

    one, other = pair
    await one.save_planner_state("empty", {})
    with pytest.raises(KeyError, match="trajectory"):
        await planner_with(other, act, [END]).resume("empty", tool_context=CONTEXT)
    with pytest.raises(KeyError, match="missing"):
        await planner_with(other, act, [END]).resume("missing", tool_context=CONTEXT)


async def test_observations_of_anything_are_in_the_trajectory(pair: tuple[Any, Any]) -> None:
    async def act(args: Words, ctx: ToolContext) -> Anything:
        return Anything(text="t", value={"set": {"b", "a"}, "nan": float("nan"), "none": None})

    one, other = pair
    await planner_with(one, act, [ACT, END]).run("q", tool_context=CONTEXT)
    await one.drain()
    trajectory = await other.get_trajectory("trace", "session")
    (step,) = trajectory.steps
    assert step.observation["value"]["set"] in (["a", "b"], "['a', 'b']", ["b", "a"])
    assert step.observation["value"]["none"] is None
    assert await other.list_traces("session") == ["trace"]


async def test_planner_events_are_in_order_although_the_clock_jumps_on_resume(
    pair: tuple[Any, Any],
) -> None:
    async def act(args: Words, ctx: ToolContext) -> Anything:
        await ctx.pause("approval_required", {})
        raise AssertionError

    one, other = pair
    first = planner_with(one, act, [ACT], time_source=lambda: 9e6)
    paused = await first.run("q", tool_context=CONTEXT)
    await one.drain()
    before = await other.list_planner_events("trace")
    second = planner_with(other, act, [END], time_source=lambda: 5.0)
    await second.resume(paused.resume_token, "yes", tool_context=CONTEXT)
    await other.drain()
    events = await one.list_planner_events("trace")
    assert events[: len(before)] == before
    assert {event.ts for event in before} == {9e6}
    assert {event.ts for event in events[len(before) :]} == {5.0}
    assert events[len(before)].event_type == "resume"


async def test_kv_takes_any_key_and_keeps_large_and_falsy_values(pair: tuple[Any, Any]) -> None:
    values = {name: n for n, name in enumerate(ODD_IDS) if name.strip()}
    found: dict[str, Any] = {}

    async def act(args: Words, ctx: ToolContext) -> Anything:
        if args.text == "write":
            for name, value in values.items():
                await ctx.kv.set(name, value)
            await ctx.kv.set("large", {"text": "x" * 20_000})
            await ctx.kv.set("falsy", 0)
            await ctx.kv.set("gone", 1)
            await ctx.kv.delete("gone")
        else:
            for name in (*values, "large", "falsy", "gone", "never"):
                found[name] = await ctx.kv.get(name)
        return Anything(text="done")

    context = {**CONTEXT, "tenant_id": "t:1", "user_id": "u", "task_id": "task"}
    for store, text in zip(pair, ("write", "read"), strict=True):
        line = {**ACT, "args": {"text": text}}
        await planner_with(store, act, [line, END], artifact_store=store.artifact_store).run(
            "q", tool_context=context
        )
    large, falsy, gone, never = (found.pop(name) for name in ("large", "falsy", "gone", "never"))
    assert found == values
    assert (large, falsy, gone, never) == ({"text": "x" * 20_000}, 0, None, None)


@pytest.mark.parametrize("value", [0, "", [], False, {}], ids=repr)
async def test_falsy_results_of_a_sessions_task_are_results(
    pair: tuple[Any, Any], value: Any
) -> None:
    async def work(runtime: TaskRuntime) -> TaskResult:
        return TaskResult(payload=value)

    one, other = pair
    async with open_session(one, "session") as session:
        await session.run_task(work, task_id="task")
    async with open_session(other, "session") as session:
        (task,) = await session.list_tasks()
        assert (type(task.result), task.result) == (type(value), value)


async def test_updates_fired_in_a_row_come_back_in_order(pair: tuple[Any, Any]) -> None:
    one, other = pair
    session = StreamingSession("session", state_store=one)
    for number in range(120):
        session._publish(
            StateUpdate(
                session_id="session",
                task_id="task",
                update_id=f"u{number}",
                update_type=UpdateType.PROGRESS,
                content=number,
            )
        )
    await one.drain()
    late = StreamingSession("session", state_store=other)
    seen: list[Any] = []
    async for update in await late.subscribe(since_id="u19"):
        seen.append(update.content)
        if update.content == 119:
            break
    assert seen == list(range(20, 120))
