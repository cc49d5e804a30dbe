"""Static breakpoints of graphs and their subgraphs: each is asked, and none is passed unasked."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from redis_state import RedisStateStore, ThreadClaimed
from redis_state.integrations.langgraph import RedisSaver, graph_handler
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Handler, OpenPause, TaskClient, TaskContext, TaskHandedBack
from tests.support.agents.graphs import Log, config_of
from tests.support.processes.pools import SESSION, becomes, pool


def _line(done: list[str], names: str, **breakpoints: Any) -> Any:
    """Make a graph whose nodes follow each other. One in capitals asks first."""

    def node(name: str, _: Log) -> Log:
        if name.isupper():
            interrupt(name)
        done.append(name)
        return {"log": [name]}

    graph: Any = StateGraph(Log)
    for name, before in zip(names, [START, *names], strict=False):
        graph.add_node(name, partial(node, name))
        graph.add_edge(before, name)
    return partial(graph.compile, **breakpoints)


def _around(inner: Any, saver: Any, *, hidden: bool = False) -> Any:
    """Compile a graph around another one, which LangGraph finds unless it is hidden."""
    inside = {"graph": inner()}

    async def call(state: Log) -> Log:
        return {"log": (await inside["graph"].ainvoke(state))["log"][len(state["log"]) :]}

    graph: Any = StateGraph(Log)
    graph.add_node("inner", call if hidden else inner())
    graph.add_edge(START, "inner")
    return graph.compile(checkpointer=saver)


async def _asked(client: TaskClient, seen: list[str | None]) -> OpenPause:
    """Wait for a pause that was not seen before."""

    async def found() -> OpenPause | None:
        pauses = await client.pauses(SESSION)
        return next((each for each in pauses if each.pause_id not in seen), None)

    pause = await eventually(found, "it asks")
    assert pause is not None
    seen.append(pause.pause_id)
    return pause


async def _approve(client: TaskClient, pause: OpenPause) -> None:
    await client.resolve(pause.pause_id or "", approved=True, actor="ann")


@pytest.mark.parametrize("at", ["interrupt_before", "interrupt_after"])
async def test_a_rejected_breakpoint_is_not_passed(store: RedisStateStore, at: str) -> None:
    done: list[str] = []
    graph = _line(done, "ab", **{at: ["b" if at == "interrupt_before" else "a"]})
    handler = graph_handler(lambda saver: graph(checkpointer=saver))
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        pause = await _asked(client, [])
        assert pause.payload == {"breakpoint": ["b"]}
        await client.resolve(pause.pause_id or "", approved=False, actor="ann")
        state = await becomes(client, task, TaskStatus.FAILED)
    assert "PauseRejected: the pause 'breakpoint' was rejected by 'ann'" in (state.error or "")
    assert done == ["a"]


@pytest.mark.parametrize("hidden", [False, True])
async def test_each_breakpoint_of_a_subgraph_is_asked(
    store: RedisStateStore, *, hidden: bool
) -> None:
    done: list[str] = []
    inner = _line(done, "abc", interrupt_before=["b"], interrupt_after=["b"])
    handler = graph_handler(lambda saver: _around(inner, saver, hidden=hidden))
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        seen: list[str | None] = []
        for following in "bc":
            pause = await _asked(client, seen)
            assert pause.payload == {"breakpoint": ["inner" if hidden else following]}
            assert "".join(done) == "ab"[: len(seen)]
            await _approve(client, pause)
        assert (await client.result(SESSION, task))["log"] == ["a", "b", "c"]


async def test_a_breakpoint_behind_a_question_of_a_subgraph_is_asked(
    store: RedisStateStore,
) -> None:
    done: list[str] = []
    inner = _line(done, "AbC", interrupt_before=["b"], interrupt_after=["b"])
    handler = graph_handler(lambda saver: _around(inner, saver))
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        seen: list[str | None] = []
        for payload, before in (
            ("A", ""),
            ({"breakpoint": ["b"]}, "A"),
            ({"breakpoint": ["C"]}, "Ab"),
            ("C", "Ab"),
        ):
            pause = await _asked(client, seen)
            assert (pause.payload, "".join(done)) == (payload, before)
            await _approve(client, pause)
        assert (await client.result(SESSION, task))["log"] == ["A", "b", "C"]


def _dying_once(handler: Handler) -> Handler:
    """Hand the task back where it first waits for a decision, as a worker that stops does."""
    died: list[int] = []

    async def run(ctx: TaskContext) -> Any:
        async def wait_for(_: Any) -> Any:
            died.append(1)
            raise TaskHandedBack("the worker stops")

        if not died:
            vars(ctx)["wait_for"] = wait_for
        return await handler(ctx)

    return run


@pytest.mark.parametrize("kind", ["own", "inner", "hidden"])
async def test_a_run_that_begins_again_does_not_pass_an_open_breakpoint(
    store: RedisStateStore, kind: str
) -> None:
    done: list[str] = []
    line = _line(done, "ab", interrupt_after=["a"])

    def build(saver: RedisSaver) -> Any:
        if kind == "own":
            return line(checkpointer=saver)
        return _around(line, saver, hidden=kind == "hidden")

    async with pool(store, {"g": _dying_once(graph_handler(build))}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        pause = await _asked(client, [])
        await becomes(client, task, TaskStatus.PAUSED)
        assert done == ["a"]
        await _approve(client, pause)
        assert (await client.result(SESSION, task))["log"] == ["a", "b"]
    assert done == ["a", "b"]


@pytest.mark.parametrize("kind", ["own", "inner"])
async def test_a_retry_asks_again_at_a_breakpoint_whose_pause_ran_out(
    store: RedisStateStore, kind: str
) -> None:
    done: list[str] = []
    line = _line(done, "ab", interrupt_after=["a"])

    def build(saver: RedisSaver) -> Any:
        return line(checkpointer=saver) if kind == "own" else _around(line, saver)

    options = {"timeout": timedelta(seconds=0.1)}
    handler = graph_handler(build, pause_options=options)
    # Its sweeper looks often.
    async with pool(store, {"g": handler}, lease_s=0.4) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        await client.retry(SESSION, task)
        state = await becomes(client, task, TaskStatus.FAILED)
    assert "PauseTimeout" in (state.error or "")
    assert done == ["a"]


async def test_a_breakpoint_is_asked_again_behind_a_change_of_the_state(
    store: RedisStateStore,
) -> None:
    done: list[str] = []
    graph = _line(done, "ab", interrupt_after=["a"])
    handler = graph_handler(lambda saver: graph(checkpointer=saver))
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        seen: list[str | None] = []
        first = await _asked(client, seen)
        await becomes(client, task, TaskStatus.PAUSED)
        changed = graph(checkpointer=RedisSaver(store))
        await changed.aupdate_state(config_of(SESSION), {"log": ["changed"]})
        await _approve(client, first)
        await _approve(client, await _asked(client, seen))
        assert (await client.result(SESSION, task))["log"] == ["a", "changed", "b"]


async def test_breakpoints_side_by_side_are_asked_at_once(store: RedisStateStore) -> None:
    done: list[str] = []
    inner = _line(done, "ab", interrupt_before=["b"])

    def build(saver: RedisSaver) -> Any:
        graph: Any = StateGraph(Log)
        for name in "xy":
            graph.add_node(name, inner())
            graph.add_edge(START, name)
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        seen: list[str | None] = []
        pauses = [await _asked(client, seen) for _ in range(2)]
        assert done == ["a", "a"]
        for pause in pauses:
            await _approve(client, pause)
        assert (await client.result(SESSION, task))["log"] == ["a", "b", "a", "b"]


async def test_a_task_whose_thread_is_deleted_while_it_waits_does_not_begin_again(
    store: RedisStateStore,
) -> None:
    done: list[str] = []
    graph = _line(done, "aB")
    handler = graph_handler(lambda saver: graph(checkpointer=saver))
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        pause = await _asked(client, [])
        await becomes(client, task, TaskStatus.PAUSED)

        async def deleted() -> bool:
            # The run gives its claim back behind the pause.
            with suppress(ThreadClaimed):
                await RedisSaver(store).adelete_thread(SESSION)
                return True
            return False

        await eventually(deleted, "the thread is deleted")
        await _approve(client, pause)
        state = await becomes(client, task, TaskStatus.FAILED)
    assert "ThreadMoved" in (state.error or "")
    assert done == ["a"]


async def test_a_fork_with_a_thread_of_its_own_begins_it(store: RedisStateStore) -> None:
    done: list[str] = []
    graph = _line(done, "aB")
    handler = graph_handler(lambda saver: graph(checkpointer=saver), thread="task")
    async with pool(store, {"g": handler}) as client:
        task, seen = await client.submit("g", {"log": []}, session_id=SESSION), list[str | None]()
        for number in (1, 2):
            await _approve(client, await _asked(client, seen))
            assert (await client.result(SESSION, task))["log"] == ["a", "B"]
            assert done == ["a", "B"] * number
            if number == 1:
                task = await client.fork(SESSION, task)


async def test_a_fork_in_its_sources_thread_is_refused_or_begins_behind_it(
    store: RedisStateStore,
) -> None:
    done: list[str] = []
    graph = _line(done, "ab")
    handler = graph_handler(lambda saver: graph(checkpointer=saver))
    async with pool(store, {"g": handler}) as client:
        source = await client.submit("g", {"log": []}, session_id=SESSION)
        assert (await client.result(SESSION, source))["log"] == ["a", "b"]
        whole = await client.fork(SESSION, source)
        state = await becomes(client, whole, TaskStatus.FAILED)
        assert "ThreadMoved" in (state.error or "")
        assert done == ["a", "b"]
        behind = await client.fork(SESSION, source, before="graph")
        assert (await client.result(SESSION, behind))["log"] == ["a", "b"] * 2


async def test_a_session_whose_id_has_a_nul_goes_on_behind_a_pause(store: RedisStateStore) -> None:
    done: list[str] = []
    graph = _line(done, "aB")
    handler = graph_handler(lambda saver: graph(checkpointer=saver))
    session = "a\0b"
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=session)

        async def asked() -> OpenPause | None:
            return next(iter(await client.pauses(session)), None)

        pause = await eventually(asked, "it asks")
        assert pause is not None
        await _approve(client, pause)
        assert (await client.result(session, task, timeout_s=20))["log"] == ["a", "B"]
