"""Runs of a graph that end at each of its writes, and go on in another run."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from redis_state import RedisStateStore, ThreadClaimed
from redis_state.integrations.langgraph import RedisSaver, graph_handler
from redis_state.integrations.langgraph.threads.claims import Run
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import StepPolicy, TaskHandedBack
from tests.support.agents.graphs import Log, config_of, counting
from tests.support.processes.pools import SESSION, becomes, pool


class EndingSaver(RedisSaver):
    """A saver whose run ends at one of its writes to a thread, as by the death of its worker."""

    # Of each thread that ends: at which write, and whether that one is done.
    ends: dict[str, tuple[int, bool]]
    writes: Counter[str]

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Put a checkpoint, or end before or behind it."""
        number = self._begin(config)
        put = await super().aput(config, checkpoint, metadata, new_versions)
        self._end(config, number, done=True)
        return put

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        """Put writes, or end before or behind them."""
        number = self._begin(config)
        await super().aput_writes(config, writes, task_id, task_path)
        self._end(config, number, done=True)

    def _begin(self, config: Any) -> int:
        thread = config["configurable"]["thread_id"]
        self.writes[thread] += 1
        number = self.writes[thread]
        self._end(config, number, done=False)
        return number

    def _end(self, config: Any, number: int, *, done: bool) -> None:
        thread = config["configurable"]["thread_id"]
        if self.ends.get(thread) == (number, done):
            del self.ends[thread]
            raise TaskHandedBack("the worker dies")


def _graph(saver: RedisSaver, ends: dict[str, tuple[int, bool]], writes: Counter[str]) -> Any:
    # It has the claims of the saver that it is made of.
    saver.__class__ = EndingSaver
    assert isinstance(saver, EndingSaver)
    saver.ends, saver.writes = ends, writes

    def begin(_: Log) -> Log:
        return {"log": ["begun"]}

    def fan(_: Log) -> list[Send]:
        return [Send("inner", {"log": [name]}) for name in "xy"]

    def ask(state: Log) -> Log:
        return {"log": [f"{interrupt(state['log'][-1])}"]}

    def end(_: Log) -> Log:
        return {"log": ["ended"]}

    inner: Any = StateGraph(Log)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    asks = inner.compile()

    async def run_inner(state: Log) -> Log:
        return {"log": (await asks.ainvoke(state))["log"][1:]}

    graph: Any = StateGraph(Log)
    graph.add_node("begin", begin)
    graph.add_node("inner", run_inner)
    graph.add_node("end", end)
    graph.add_edge(START, "begin")
    graph.add_conditional_edges("begin", fan, ["inner"])
    graph.add_edge("inner", "end")
    graph.add_edge("end", END)
    return graph.compile(checkpointer=saver)


async def test_a_run_that_ends_at_any_write_is_completed_by_another(
    store: RedisStateStore,
) -> None:
    count = 25
    ends = {f"{n} {done}": (n, done) for n in range(1, count + 1) for done in (False, True)}
    sessions = [*ends, "undisturbed"]
    writes: Counter[str] = Counter()
    modes: list[Any] = ["updates", "values"]
    handler = graph_handler(lambda saver: _graph(saver, ends, writes), stream_mode=modes)

    # What is resumed from the thread does not ask for earlier decisions again.
    steps = StepPolicy(on_changed="fail")
    async with pool(store, {"g": handler}, max_tasks=60, steps=steps) as client:

        async def answer(session: str) -> tuple[Any, list[Any]]:
            task = await client.submit("g", {"log": ["start"]}, session_id=session)

            async def asked() -> Any:
                pauses = await client.pauses(session)
                return pauses if len(pauses) == 2 else None

            pauses = await eventually(asked, f"{session} asks twice")
            assert sorted(pause.payload for pause in pauses) == ["x", "y"]
            for pause in sorted(pauses, key=lambda each: each.payload, reverse=True):
                value = f"{pause.payload}!"
                await client.resolve(pause.pause_id, approved=True, value=value, actor="ann")
            result = await client.result(session, task, timeout_s=30)
            rows = await store.list_updates(session, task_id=task)
            events = [row.content for row in rows if row.update_type.value == "PROGRESS"]
            return result, events

        answers = await asyncio.gather(*map(answer, sessions))
    # All writes of a run that nothing disturbs were tried.
    assert min((number for number, _ in ends.values()), default=count) >= writes["undisturbed"]
    for session, (result, events) in zip(sessions, answers, strict=True):
        assert result == {"log": ["start", "begun", "x!", "y!", "ended"]}, session
        published = Counter(map(str, events))
        assert set(published.values()) == {1}, session
        # Each event of a run that nothing disturbs, of the whole graph.
        assert _whole(events) == _whole(answers[-1][1]), session


def _whole(events: list[Any]) -> list[str]:
    """Return the events of the whole graph, without what differs in each run: ids of interrupts."""
    data = [(each["graph"], each["data"]) for each in events if not each["namespace"]]
    return sorted(re.sub(r"[0-9a-f]{32}", "-", str(each)) for each in data)


async def test_a_run_that_stood_still_does_not_take_the_thread_from_a_later_one(
    store: RedisStateStore,
) -> None:
    saver = RedisSaver(store)
    stalled, later = (saver.claim("t") for _ in range(2))
    await later.take(Run("task", 20))
    for run in (Run("task", 10), Run("task", 20), Run("other", 30)):
        with pytest.raises(ThreadClaimed):
            await stalled.take(run)
    async with later:
        await counting(saver).ainvoke({"log": ["later"]}, config_of("t"))
    await stalled.take(Run("task", 10))
    async with saver.claim("u") as claim:
        assert claim.epoch
    # A claim that belongs to no task is not taken over by one.
    async with saver.claim("v"):
        with pytest.raises(ThreadClaimed):
            await saver.claim("v").take(Run("task", 10))


async def test_a_claim_that_is_lost_in_a_step_hands_the_task_back(store: RedisStateStore) -> None:
    runs: list[int] = []

    async def work(_: Log) -> Log:
        runs.append(1)
        if len(runs) == 1:
            # The server forgets the claim, as one whose history went back.
            key = store.base.keys.graph_thread(SESSION)
            names = ("owner", "claim", "epoch", "expires", "length")
            await store.transport.sender.send("HDEL", key, *names, repeatable=True)
        return {"log": ["done"]}

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build)}) as client:
        task = await client.submit("g", {"log": ["x"]}, session_id=SESSION)
        result = await client.result(SESSION, task, timeout_s=20)
    assert result == {"log": ["x", "done"]}
    assert len(runs) == 2


async def test_a_run_that_is_cancelled_at_an_event_stops_its_nodes(store: RedisStateStore) -> None:
    stopped = asyncio.Event()
    begun = asyncio.Event()

    async def work(_: Log) -> Log:
        begun.set()
        try:
            while True:
                get_stream_writer()({"beat": 1})
                await asyncio.sleep(0.005)
        finally:
            stopped.set()

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        return graph.compile(checkpointer=saver)

    handler = graph_handler(build, stream_mode="custom")
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": ["x"]}, session_id=SESSION)
        await begun.wait()
        await client.cancel(SESSION, task, reason="enough")
        await becomes(client, task, TaskStatus.CANCELLED)
        assert stopped.is_set()


async def test_a_graph_without_events_is_cancelled_between_two_steps(
    store: RedisStateStore,
) -> None:
    steps: list[int] = []
    going_on = asyncio.Event()

    async def step(_: Log) -> Log:
        steps.append(1)
        if len(steps) >= 3:
            await going_on.wait()
            await asyncio.sleep(0.01)
        return {"log": ["step"]}

    def more(state: Log) -> str:
        return "step" if len(state["log"]) < 900 else END

    def build(saver: Any) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_node("step", step)
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", more)
        return graph.compile(checkpointer=saver)

    handler = graph_handler(build, stream_mode=(), config={"recursion_limit": 1000})
    async with pool(store, {"g": handler}) as client:
        task = await client.submit("g", {"log": ["x"]}, session_id=SESSION)
        await eventually(lambda: len(steps) == 3, "it is in the third step")
        await client.cancel(SESSION, task, reason="enough")
        going_on.set()
        await becomes(client, task, TaskStatus.CANCELLED)
    # The event may arrive a few steps late.
    assert len(steps) < 899


async def test_an_id_of_a_session_may_be_any_text(store: RedisStateStore) -> None:
    async with pool(store, {"g": graph_handler(counting)}) as client:
        for session in ("\ud800", "a\nb:{}", "e\u0301" * 200, "a\0b", "\U0001f642" * 500):
            task = await client.submit("g", {"log": ["x"]}, session_id=session)
            result = await client.result(session, task, timeout_s=20)
            assert len(result["log"]) == 4


async def test_a_thread_whose_id_is_a_number_is_continued_behind_a_failure(
    store: RedisStateStore,
) -> None:
    failures = ["once"]

    def ask(_: Log) -> Log:
        return {"log": [str(interrupt("ok?"))]}

    def work(_: Log) -> Log:
        if failures:
            raise ValueError(failures.pop())
        return {"log": ["done"]}

    def build(saver: RedisSaver) -> Any:
        graph: Any = StateGraph(Log)
        graph.add_sequence([ask, work])
        graph.add_edge(START, "ask")
        return graph.compile(checkpointer=saver)

    async with pool(store, {"g": graph_handler(build, thread=lambda _: 7)}) as client:
        task = await client.submit("g", {"log": []}, session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        await client.approve(str(pause.pause_id), "yes", actor="ann")
        failed = await becomes(client, task, TaskStatus.FAILED)
        assert "once" in (failed.error or "")
        await client.retry(SESSION, task)
        assert (await client.result(SESSION, task))["log"] == ["yes", "done"]
    assert await RedisSaver(store).aget_tuple(config_of("7")) is not None
