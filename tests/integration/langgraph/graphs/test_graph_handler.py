"""Graphs as tasks of the pool: pauses, one winner, crashes, events, turns."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sys
import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from redis_state import InvalidField, RedisStateStore, Settings, TaskInProgress, TokenResolved
from redis_state.integrations.langgraph import RedisSaver, graph_handler
from redis_state.integrations.langgraph.threads.claims import ThreadClaims
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient
from tests.support.agents.graphs import Log, asking, config_of, counting
from tests.support.processes import children
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    pool,
    queue_of,
    updates_of,
)
from tests.support.servers.faults import start_process


async def open_pauses(client: TaskClient, count: int = 1) -> list[Any]:
    async def found() -> list[Any] | None:
        pauses = await client.pauses(SESSION)
        return list(pauses) if len(pauses) == count else None

    listed: Any = await eventually(found, f"{count} pauses are open")
    assert isinstance(listed, list)
    return listed  # pyright: ignore[reportUnknownVariableType]


async def events_of(store: RedisStateStore, task: str) -> list[Any]:
    return [
        update.content
        for update in await updates_of(store, task)
        if update.update_type.value == "PROGRESS"
    ]


async def test_a_graph_runs_as_a_task_and_its_session_is_its_thread(
    store: RedisStateStore,
) -> None:
    result: Any = None
    async with pool(store, {"g": graph_handler(counting)}) as client:
        for number, name in enumerate(("a", "b")):
            task = await client.submit("g", {"log": [name]}, session_id=SESSION)
            result = await client.result(SESSION, task)
            assert result["log"].count(name) == 1
            assert len(await events_of(store, task)) == (3, 1)[number]
    state = await counting(RedisSaver(store)).aget_state(config_of(SESSION))
    assert state.values == result


async def test_several_interrupts_are_several_pauses_and_each_effect_happens_once(
    store: RedisStateStore,
) -> None:
    done: list[Any] = []
    handler = graph_handler(lambda saver: asking(saver, done.append, "pay", "ship"))
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        pauses = await open_pauses(client, 2)
        questions = sorted(pause.payload["question"] for pause in pauses)
        assert questions == ["pay", "ship"]
        for pause in reversed(pauses):
            answer = f"{pause.payload['question']}!"
            await client.resolve(pause.pause_id, approved=True, value=answer, actor="ann")
        result = await client.result(SESSION, task)
    assert sorted(result["log"]) == ["pay pay!", "ship ship!"]
    assert sorted(done) == [("pay", "pay!"), ("ship", "ship!")]


async def test_a_node_that_asks_twice_pauses_twice_and_a_rejection_is_told(
    store: RedisStateStore,
) -> None:
    def ask(_: Log) -> Log:
        return {"log": [f"{interrupt('same')}", f"{interrupt('same')}"]}

    def build(saver: Any) -> Any:
        inner: Any = StateGraph(Log)
        inner.add_node("ask", ask)
        inner.add_edge(START, "ask")
        outer: Any = StateGraph(Log)
        outer.add_node("inner", inner.compile())
        outer.add_edge(START, "inner")
        return outer.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        (first,) = await open_pauses(client)
        await client.resolve(first.pause_id, approved=True, actor="ann")

        async def second() -> Any:
            pauses = [p for p in await client.pauses(SESSION) if p.pause_id != first.pause_id]
            return pauses[0] if pauses else None

        other = await eventually(second, "it asks again")
        await client.resolve(other.pause_id, approved=False, value="no", actor="ann")
        result = await client.result(SESSION, task)
    assert result["log"] == ["True", "{'rejected': True, 'value': 'no'}"]


def _logging(name: str, _: Log) -> Log:
    return {"log": [name]}


async def test_a_breakpoint_is_a_pause(store: RedisStateStore) -> None:
    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("a", partial(_logging, "a"))
        graph.add_node("b", partial(_logging, "b"))
        graph.add_edge(START, "a")
        graph.add_edge("a", "b")
        graph.add_edge("b", END)
        return graph.compile(checkpointer=saver, interrupt_before=["b"])

    async with pool(store, {"g": graph_handler(build)}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        (pause,) = await open_pauses(client)
        assert pause.payload == {"breakpoint": ["b"]}
        await client.resolve(pause.pause_id, approved=True, actor="ann")
        assert (await client.result(SESSION, task))["log"] == ["a", "b"]


async def test_a_state_that_a_person_changes_is_put_to_the_question_again(
    store: RedisStateStore,
) -> None:
    def pay(state: Log) -> Log:
        return {"log": [f"pay {interrupt(len(state['log']))}"]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("begin", partial(_logging, "begin"))
        graph.add_node("pay", pay)
        graph.add_edge(START, "begin")
        graph.add_edge("begin", "pay")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        (first,) = await open_pauses(client)
        await becomes(client, task, TaskStatus.PAUSED)
        saver = RedisSaver(store)
        for word in ("one", "two"):
            await build(saver).aupdate_state(config_of(SESSION), {"log": [word]})
        await client.resolve(first.pause_id, approved=True, value="old", actor="ann")

        async def asked() -> Any:
            pauses = await client.pauses(SESSION)
            return [each for each in pauses if each.pause_id != first.pause_id]

        (second,) = await eventually(asked, "it asks about the new state")
        assert (first.payload, second.payload) == (1, 3)
        await client.resolve(second.pause_id, approved=True, value="new", actor="ann")
        assert (await client.result(SESSION, task))["log"] == ["begin", "one", "two", "pay new"]


async def test_a_thread_that_another_caller_continued_fails_the_task(
    store: RedisStateStore,
) -> None:
    done: list[Any] = []

    def build(saver: Any) -> Any:
        return asking(saver, done.append, "pay")

    async with pool(store, {"g": graph_handler(build)}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        (pause,) = await open_pauses(client)
        await becomes(client, task, TaskStatus.PAUSED)
        await build(RedisSaver(store)).ainvoke({"log": ["other"]}, config_of(SESSION))
        await client.resolve(pause.pause_id, approved=True, actor="ann")
        state = await becomes(client, task, TaskStatus.FAILED)
    assert "ThreadMoved" in (state.error or "")
    assert done == []


async def test_a_second_message_is_refused_or_interrupts_the_first(store: RedisStateStore) -> None:
    handler = graph_handler(lambda saver: asking(saver, str, "pay"))
    async with pool(store, {"g": handler}) as client:
        first = await client.submit("g", {"log": ["1"]}, session_id=SESSION, in_turn=True)
        await open_pauses(client)
        with pytest.raises(TaskInProgress):
            await client.submit(
                "g", {"log": ["2"]}, session_id=SESSION, in_turn=True, on_busy="reject"
            )
        third = await client.submit(
            "g", {"log": ["3"]}, session_id=SESSION, in_turn=True, on_busy="interrupt"
        )
        await becomes(client, first, TaskStatus.CANCELLED)

        async def of_third() -> Any:
            pauses = [p for p in await client.pauses(SESSION) if p.task_id == third]
            return pauses[0] if pauses else None

        pause = await eventually(of_third, "the third asks")
        await client.resolve(pause.pause_id, approved=True, value="yes", actor="ann")
        assert (await client.result(SESSION, third))["log"] == ["1", "3", "pay yes"]


@pytest.mark.parametrize("policy", ["enqueue", "replace"])
async def test_a_message_behind_a_question_moves_the_thread_of_who_asked(
    store: RedisStateStore, policy: Literal["enqueue", "replace"]
) -> None:
    done: list[Any] = []
    reached, left = asyncio.Event(), asyncio.Event()

    async def hold(state: Log) -> Log:
        if state["log"] == ["1"]:
            reached.set()
            await left.wait()
        return {"log": ["held"]}

    def ask(state: Log) -> Log:
        if state["log"][-2] == "1":
            done.append(interrupt("pay?"))
        return {"log": ["asked"]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("hold", hold)
        graph.add_node("ask", ask)
        graph.add_edge(START, "hold")
        graph.add_edge("hold", "ask")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}) as client:

        async def submit(word: str) -> str:
            given = {"log": [word]}
            return await client.submit("g", given, session_id=SESSION, in_turn=True, on_busy=policy)

        first = await submit("1")
        await reached.wait()
        second, third = await submit("2"), await submit("3")
        if policy == "replace":
            state = await becomes(client, second, TaskStatus.CANCELLED)
            assert state.error == f"replaced by task {third!r}"
        left.set()
        (pause,) = await open_pauses(client)
        result = await client.result(SESSION, third)
        between = ["2", "held", "asked"] if policy == "enqueue" else []
        assert result["log"] == ["1", "held", *between, "3", "held", "asked"]
        await becomes(client, first, TaskStatus.PAUSED)
        await client.resolve(pause.pause_id, approved=True, actor="ann")
        state = await becomes(client, first, TaskStatus.FAILED)
    assert "ThreadMoved" in (state.error or "")
    assert done == []


async def test_tasks_of_one_thread_run_one_at_a_time(store: RedisStateStore) -> None:
    running: set[str] = set()
    most: list[int] = []

    async def work(state: Log) -> Log:
        running.add(state["log"][-1])
        most.append(len(running))
        await asyncio.sleep(0.02)
        running.discard(state["log"][-1])
        return {"log": ["done"]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}) as client:
        tasks = [await client.submit("g", {"log": [f"{n}"]}, session_id=SESSION) for n in range(4)]
        results = [await client.result(SESSION, task) for task in tasks]
    assert max(most) == 1
    assert max(len(result["log"]) for result in results) == 8


async def test_a_task_that_waits_for_its_thread_reads_the_claim_and_warns_once(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str) -> None:
        was: Any = getattr(ThreadClaims, name)

        async def call(*arguments: Any) -> Any:
            calls[name] += 1
            return await was(*arguments)

        monkeypatch.setattr(ThreadClaims, name, call)

    async with pool(store, {"g": graph_handler(counting)}) as client:
        async with RedisSaver(store).claim(SESSION):
            counted("take")
            counted("holder")
            given: Any = {"log": ["1"]}
            tasks = [await client.submit("g", given, session_id=SESSION) for _ in range(2)]
            # Each looks behind its first try, and then again and again.
            await eventually(lambda: calls["holder"] >= 8, "both have looked several times")
            assert calls["take"] == 2
        for task in tasks:
            await client.result(SESSION, task)
    found = [record.getMessage() for record in caplog.records if "slot" in record.getMessage()]
    assert len(found) == 1
    assert "in_turn=True" in found[0]


async def test_events_are_published_by_mode(store: RedisStateStore) -> None:
    def work(_: Log) -> Log:
        get_stream_writer()({"half": 1})
        return {"log": ["done"]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        return graph.compile(checkpointer=saver)

    handler = graph_handler(build, stream_mode=["updates", "values", "custom"])
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": ["x"]}, session_id=SESSION)
        await client.result(SESSION, task)
    assert [(each["graph"], each["data"]) for each in await events_of(store, task)] == [
        ("values", {"log": ["x"]}),
        ("custom", {"half": 1}),
        ("updates", {"work": {"log": ["done"]}}),
        ("values", {"log": ["x", "done"]}),
    ]


def test_a_version_whose_interrupts_share_an_id_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "redis_state.integrations.langgraph"
    for module in [each for each in sys.modules if each.startswith(name)]:
        monkeypatch.delitem(sys.modules, module)
    for version in ("1.2.19", "1.2", "0.6.7rc1"):
        monkeypatch.setattr(importlib.metadata, "version", {"langgraph": version}.__getitem__)
        with pytest.raises(ImportError, match=r"from 1\.2\.20 on: pip install 'redis_state"):
            importlib.import_module(name)


def test_bad_options_are_refused_by_name() -> None:
    bad: Any = "all"
    with pytest.raises(InvalidField, match="stream_mode"):
        graph_handler(counting, stream_mode=bad)
    with pytest.raises(InvalidField, match="lease_s"):
        graph_handler(counting, lease_s=0)
    graph: Any = counting(InMemorySaver())
    with pytest.raises(InvalidField, match="build: a function"):
        graph_handler(graph)


@pytest.mark.parametrize("kind", ["another saver", "no saver", "another store", "no graph"])
async def test_a_graph_that_no_run_could_resume_fails_its_task_before_it_begins(
    store: RedisStateStore, kind: str
) -> None:
    done: list[str] = []

    def node(_: Log) -> Log:
        done.append("node")
        return {"log": []}

    graph: Any = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with RedisStateStore(store.settings) as other:
        savers: dict[str, Any] = {
            "another saver": InMemorySaver(),
            "another store": RedisSaver(other),
        }
        compiled = graph if kind == "no graph" else graph.compile(checkpointer=savers.get(kind))
        async with pool(store, {"g": graph_handler(lambda _: compiled)}) as client:
            task = await client.submit("g", {"log": []}, session_id=SESSION)
            state = await becomes(client, task, TaskStatus.FAILED)
    assert "InvalidField" in (state.error or "")
    assert "build: has to return a graph compiled with the saver" in (state.error or "")
    assert done == []


async def test_a_graph_may_be_built_by_an_async_function_with_a_saver_of_its_own(
    store: RedisStateStore,
) -> None:
    built: list[RedisSaver] = []

    async def build(saver: RedisSaver) -> Any:
        built.append(RedisSaver(saver.store, lifetime=timedelta(hours=1)))
        await asyncio.sleep(0)
        return counting(built[0], steps=1)

    async with pool(store, {"g": graph_handler(build)}) as client:
        tasks = [await client.submit("g", {"log": []}, session_id=SESSION) for _ in range(2)]
        results = [await client.result(SESSION, task) for task in tasks]
    assert sorted(len(result["log"]) for result in results) == [2, 3]
    assert len(built) == 1


@pytest.mark.parametrize("kind", ["in memory", "in Redis"])
async def test_a_saver_alone_lets_two_resumes_of_an_interrupt_both_run(
    store: RedisStateStore, kind: str
) -> None:
    done: list[Any] = []
    # Each waits for the other one's effect.
    both = threading.Barrier(2, timeout=30)

    def pay(answer: Any) -> None:
        done.append(answer)
        both.wait()

    savers: list[Any] = [InMemorySaver()] * 2
    if kind == "in Redis":
        savers = [RedisSaver(store), RedisSaver(store)]
    graphs = [asking(saver, pay, "pay") for saver in savers]
    await graphs[0].ainvoke({"log": []}, config_of("t"))
    resumes = zip(graphs, "AB", strict=True)
    await asyncio.gather(
        *(graph.ainvoke(Command(resume=by), config_of("t")) for graph, by in resumes)
    )
    assert sorted(done) == [("pay", "A"), ("pay", "B")]


async def test_two_processes_a_kill_and_eight_deciders_give_one_effect(
    store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "folder": str(tmp_path),
    }
    workers = {
        name: await start_process("graph_worker", {**argument, "name": name}) for name in "ab"
    }

    def written(file: str) -> list[Any]:
        path = tmp_path / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async with client_of(store) as client:
        task = await client.submit("graph", {"log": ["start"]}, session_id=SESSION)
        await eventually(lambda: len(written("steps")) >= 3, "some steps are done")
        await children.end(workers.pop(written("steps")[0][0]))

        async def asks() -> list[Any]:
            state = await client.get(SESSION, task)
            assert state is not None
            assert state.status is not TaskStatus.FAILED, state.error
            return list(await client.pauses(SESSION))

        (pause,) = await eventually(asks, "the graph asks")
        decided = await asyncio.gather(
            *(
                client.resolve(pause.pause_id, approved=True, value=by, actor=by)
                for by in "ABCDEFGH"
            ),
            return_exceptions=True,
        )
        assert sum(not isinstance(each, BaseException) for each in decided) == 1
        assert sum(isinstance(each, TokenResolved) for each in decided) == 7
        result = await client.result(SESSION, task)
        for process in workers.values():
            await children.end(process)
    assert len(written("paid")) == 1
    assert result["log"][1:-1] == [f"step {number}" for number in range(1, 9)]
    # The step in flight was done twice at most, all others once.
    assert len(written("steps")) in (8, 9)
    assert len({name for name, _ in written("steps")}) == 2
    events = await events_of(store, task)
    updates = [each["data"] for each in events if each["graph"] == "updates"]
    done = [update["step"]["log"][0] for update in updates if "step" in update]
    assert done == [f"step {number}" for number in range(1, 9)]
    values = [len(each["data"]["log"]) for each in events if each["graph"] == "values"]
    # The question is an event of its own, with the values that it was asked at.
    assert values == [*range(1, 10), 9, 10]


class ReadingSaver(RedisSaver):
    """A saver that counts how often a checkpoint is read whole."""

    reads: Counter[str]

    async def aget_tuple(self, config: Any) -> Any:
        """Read a checkpoint."""
        self.reads[config["configurable"]["thread_id"]] += 1
        return await super().aget_tuple(config)


async def test_a_task_reads_the_values_of_its_thread_where_langgraph_needs_them(
    store: RedisStateStore,
) -> None:
    reads: Counter[str] = Counter()

    def build(saver: Any) -> Any:
        saver.__class__ = ReadingSaver
        saver.reads = reads
        return counting(saver, steps=1)

    async with pool(store, {"g": graph_handler(build)}) as client:
        for _ in range(3):
            task = await client.submit("g", {"log": ["x"]}, session_id=SESSION)
            await client.result(SESSION, task)
    # Where the graph begins, and its state at the end: a long conversation is unpacked twice.
    assert reads == {SESSION: 2 * 3}
