"""What nodes of a graph reach: LangGraph's run-time context, and the context of their task."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import ReferenceType, ref

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Interrupt, RetryPolicy, interrupt

from redis_state import RedisStateStore
from redis_state.integrations.langgraph import RedisSaver, branch, current_task, graph_handler
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Decision, OpenPause, StepPolicy, TaskClient, TaskContext
from tests.support.agents.graphs import Log
from tests.support.processes.pools import SESSION, becomes, pool, updates_of

# A graph's later run repeats only the node that it resumes at: that is no change of the handler.
STRICT = StepPolicy(on_changed="fail")


@dataclass
class Who:
    """What the nodes are given."""

    name: str


def chain(*nodes: Any, **options: Any) -> Any:
    """Return what compiles nodes one after another."""

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log, **options)
        last = START
        for node in nodes:
            graph.add_node(node.__name__, node)
            graph.add_edge(last, node.__name__)
            last = node.__name__
        return graph.compile(checkpointer=saver)

    return build


@pytest.mark.parametrize("kind", ["value", "function", "async function"])
async def test_nodes_get_the_context_that_the_handler_makes(
    store: RedisStateStore, kind: str
) -> None:
    def hello(_: Log, runtime: Runtime[Who]) -> Log:
        return {"log": [f"hello {runtime.context.name}"]}

    async def made(ctx: TaskContext) -> Who:
        return Who(ctx.task.session_id)

    def made_at_once(ctx: TaskContext) -> Who:
        return Who(ctx.task.session_id)

    context: Any = {
        "value": Who(SESSION),
        "function": made_at_once,
        "async function": made,
    }[kind]
    handler = graph_handler(chain(hello, context_schema=Who), context=context)
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        assert (await client.result(SESSION, task))["log"] == [f"hello {SESSION}"]


async def test_what_a_node_records_is_its_own_and_is_not_done_again(
    store: RedisStateStore,
) -> None:
    done: list[str] = []
    keys: list[tuple[str, str]] = []

    async def act(name: str) -> str:
        ctx = current_task()
        keys.append((name, ctx.effect_id("call")))
        await ctx.progress(f"{name} begins")

        async def call() -> str:
            done.append(name)
            keys.append((name, current_task().effect_id()))
            return f"{name} {len(done)}"

        return str(await ctx.step("call", call))

    async def first(_: Log) -> Log:
        return {"log": [await act("first")]}

    async def ask(_: Log) -> Log:
        found = await act("ask")
        return {"log": [f"{found} {interrupt('sure?')}"]}

    def plain(_: Log) -> Log:
        keys.append(("plain", current_task().effect_id("call")))
        return {"log": []}

    async def last(_: Log) -> Log:
        return {"log": [await act("last")]}

    handler = graph_handler(chain(first, ask, plain, last), stream_mode=())
    async with pool(store, {"g": handler}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.resolve(str(pause.pause_id), approved=True, value="yes", actor="ann")
        result = await client.result(SESSION, task)
    assert result["log"] == ["first 1", "ask 2 yes", "last 3"]
    assert done == ["first", "ask", "last"]
    # The node that asked ran twice. Each has one key, before its step and in it, of its own.
    assert Counter(name for name, _ in keys) == {"first": 2, "ask": 3, "plain": 1, "last": 2}
    assert len(set(keys)) == len({key for _, key in keys}) == 4
    told = [
        update.content["message"]
        for update in await updates_of(store, task)
        if update.update_type.value == "PROGRESS"
    ]
    assert told == ["first begins", "ask begins", "last begins"]


async def test_a_node_that_langgraph_tries_again_finds_its_records(
    store: RedisStateStore,
) -> None:
    done: list[str] = []
    tries: list[int] = []

    async def pay(_: Log) -> Log:
        for name in ("take", "take"):
            await current_task().step(name, done.append, name)
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return {"log": ["paid"]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        again = RetryPolicy(initial_interval=0.001, jitter=False)
        graph.add_node("pay", pay, retry_policy=again)
        graph.add_edge(START, "pay")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        assert (await client.result(SESSION, task))["log"] == ["paid"]
    assert (len(tries), done) == (3, ["take", "take"])


async def test_a_node_of_a_subgraph_may_pause_and_join_in_its_task(store: RedisStateStore) -> None:
    done: list[str] = []

    async def child(ctx: TaskContext) -> str:
        done.append("child")
        return f"the child of {ctx.input}"

    async def pay(_: Log) -> Log:
        ctx = current_task()
        found = await ctx.join(await ctx.spawn("child", "pay"))
        await ctx.step("begin", done.append, "begin")
        decision = await ctx.approval("pay?")
        await ctx.step("pay", done.append, "pay")
        return {"log": [f"{found}, paid by {decision.actor}"]}

    inner = chain(pay)(None)
    outer: Any = StateGraph(Log)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    handler = graph_handler(lambda saver: outer.compile(checkpointer=saver))
    async with pool(store, {"g": handler, "child": child}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)

        async def asked() -> list[OpenPause]:
            return [each for each in await client.pauses(SESSION) if each.payload]

        (pause,) = await eventually(asked, "the node asks")
        assert pause.payload["question"] == "pay?"
        await client.approve(str(pause.pause_id), actor="ann")
        assert (await client.result(SESSION, task))["log"] == ["the child of pay, paid by ann"]
    assert done == ["child", "begin", "pay"]


async def test_agents_of_pydantic_ai_in_nodes_are_durable_each_for_itself(
    store: RedisStateStore,
) -> None:
    pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")
    from tests.support.agents import pydantic_ai as host  # noqa: PLC0415 - it needs that package

    seen: list[int] = []
    paid: list[int] = []
    agent = host.durable_agent(host.scripted([host.call("pay")], "done", seen=seen))
    agent.tool_plain(name="pay", requires_approval=True)(host.says("paid", paid))

    async def one(_: Log) -> Log:
        return {"log": [(await agent.run("first")).output]}

    async def two(_: Log) -> Log:
        return {"log": [(await agent.run("second")).output]}

    async with pool(store, {"g": graph_handler(chain(one, two))}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        await _approve_twice(client, task)
        assert (await client.result(SESSION, task))["log"] == ["done", "done"]
    assert (seen, len(paid)) == ([0, 1, 0, 1], 2)


async def test_agents_of_openai_in_nodes_are_durable_each_for_itself(
    store: RedisStateStore,
) -> None:
    pytest.importorskip("agents", reason="needs the openai-agents extra")
    from agents import Runner, function_tool  # noqa: PLC0415 - it needs that package

    from redis_state.integrations.openai_agents import durable  # noqa: PLC0415 - as above
    from tests.support.agents import openai_agents as host  # noqa: PLC0415 - as above

    paid: list[int] = []

    @function_tool(needs_approval=True)
    def pay() -> str:
        paid.append(1)
        return "paid"

    model = host.scripted([host.call("pay")], "done")
    agent = host.agent_of(model, tools=[pay])

    async def one(_: Log) -> Log:
        return {"log": [(await Runner.run(agent, "go", run_config=host.QUIET)).final_output]}

    async def two(_: Log) -> Log:
        return {"log": [(await Runner.run(agent, "go", run_config=host.QUIET)).final_output]}

    handler = durable(graph_handler(chain(one, two)))
    async with pool(store, {"g": handler}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        await _approve_twice(client, task)
        assert (await client.result(SESSION, task))["log"] == ["done", "done"]
    assert (model.seen, len(paid)) == ([0, 1, 0, 1], 2)


async def test_nodes_of_a_subgraph_that_a_branch_calls_record_each_for_itself(
    store: RedisStateStore,
) -> None:
    pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")
    from tests.support.agents import pydantic_ai as host  # noqa: PLC0415 - it needs that package

    asked: list[int] = []
    agent = host.durable_agent(host.scripted("done", seen=asked))
    done: list[str] = []

    async def act(name: str) -> None:
        await agent.run(name)
        await current_task().step("fetch", done.append, name)

    async def first(_: Log) -> Log:
        await act("first")
        return {"log": ["first"]}

    async def ask(_: Log) -> Log:
        await act("ask")
        return {"log": [f"ask {interrupt('sure?')}"]}

    inner = chain(first, ask)(None)

    async def outer(state: Log) -> Log:
        with branch("inner"):
            return {"log": (await inner.ainvoke(state))["log"]}

    async with pool(store, {"g": graph_handler(chain(outer))}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        assert (done, len(asked)) == (["first", "ask"], 2)
        (pause,) = await client.pauses(SESSION)
        await client.resolve(str(pause.pause_id), approved=True, value="yes", actor="ann")
        assert (await client.result(SESSION, task))["log"] == ["first", "ask yes"]
    # The later run begins at the node that asked, and finds what that one has recorded.
    assert (done, len(asked)) == (["first", "ask"], 2)


async def test_nodes_of_a_subgraph_in_a_step_record_each_for_itself(store: RedisStateStore) -> None:
    async def one(_: Log) -> Log:
        return {"log": [str(await current_task().step("fetch", lambda: "one"))]}

    async def two(_: Log) -> Log:
        return {"log": [str(await current_task().step("fetch", lambda: "two"))]}

    inner = chain(one, two)(None)

    async def outer(state: Log) -> Log:
        async def work() -> list[str]:
            return list((await inner.ainvoke(state))["log"])

        return {"log": await current_task().step("inner", work)}

    async with pool(store, {"g": graph_handler(chain(outer))}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        assert (await client.result(SESSION, task))["log"] == ["one", "two"]


async def test_a_node_that_is_over_is_not_kept_until_the_end_of_the_run(
    store: RedisStateStore,
) -> None:
    seen: list[ReferenceType[TaskContext]] = []
    kept: list[int] = []

    async def step(_: Log) -> Log:
        seen.append(ref(current_task()))
        assert seen[-1]() is current_task()
        gc.collect()
        kept.append(sum(each() is not None for each in seen))
        return {"log": ["step"]}

    def more(state: Log) -> str:
        return "step" if len(state["log"]) < 9 else END

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("step", step)
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", more)
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}, steps=STRICT) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        assert len((await client.result(SESSION, task))["log"]) == 9
    assert max(kept) <= 3


async def test_a_body_of_an_entrypoint_begins_behind_its_checkpoint(
    store: RedisStateStore,
) -> None:
    put: list[str] = []
    found: list[tuple[list[str], str]] = []

    class SlowSaver(RedisSaver):
        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            # A body that does not wait is done with its first step before this.
            for _ in range(100):
                await asyncio.sleep(0)
            done = await super().aput(config, checkpoint, metadata, new_versions)
            put.append(metadata["source"])
            return done

    def build(saver: Any) -> Any:
        saver.__class__ = SlowSaver

        @entrypoint(checkpointer=saver)
        async def flow(given: Any) -> Any:
            found.append(([*put], current_task().effect_id("pay")))
            return [given, interrupt("sure?")]

        built: Any = flow  # pyright: ignore[reportUnknownVariableType] - of no typed state
        return built

    async with pool(store, {"g": graph_handler(build)}, steps=STRICT) as client:
        for number in (1, 2):
            put.clear()
            found.clear()
            task = await client.submit("g", number, session_id=SESSION)
            await becomes(client, task, TaskStatus.PAUSED)
            # A run that begins again has to find the checkpoint whose id names the effect.
            assert [before for before, _ in found] == [["input"]]
            (pause,) = await client.pauses(SESSION)
            await client.resolve(str(pause.pause_id), approved=True, value="yes", actor="ann")
            assert await client.result(SESSION, task) == [number, "yes"]
            assert (len(found), len({effect for _, effect in found})) == (2, 1)


async def _approve_twice(client: TaskClient, task: str) -> None:
    approved: set[str] = set()

    async def another() -> str | None:
        ids = {str(pause.pause_id) for pause in await client.pauses(SESSION)}
        state = await client.get(SESSION, task)
        assert state is not None
        assert state.status is not TaskStatus.FAILED, state.error
        return next(iter(ids - approved), None)

    for _ in range(2):
        found = await eventually(another, "an agent asks")
        assert found is not None
        await client.approve(found)
        approved.add(found)


async def test_threads_decisions_and_pauses_may_be_what_async_functions_say(
    store: RedisStateStore,
) -> None:
    def ask(_: Log) -> Log:
        return {"log": [str(interrupt({"question": "pay?", "boss": "ann"}))]}

    async def thread(ctx: TaskContext) -> str:
        return f"thread of {ctx.task.session_id}"

    async def resume(decision: Decision) -> str:
        await asyncio.sleep(0)
        return f"{decision.value} of {decision.actor}"

    async def terms(asked: Interrupt) -> dict[str, Any]:
        value: Any = asked.value
        if "breakpoint" in value:
            return {"tags": value["breakpoint"]}
        return {"of": [value["boss"]], "timeout": timedelta(hours=1)}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("ask", ask)
        graph.add_edge(START, "ask")
        return graph.compile(checkpointer=saver, interrupt_before=["ask"])

    handler = graph_handler(build, thread=thread, resume=resume, pause_options=terms)
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (stop,) = await client.pauses(SESSION)
        assert list(stop.tags) == ["ask"]
        await client.approve(str(stop.pause_id), actor="ben")

        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = [each for each in await client.pauses(SESSION) if each.name == "interrupt"]
        assert [decider.name for decider in pause.deciders] == ["ann"]
        await client.approve(str(pause.pause_id), "yes", actor="ann")
        assert (await client.result(SESSION, task))["log"] == ["yes of ann"]
