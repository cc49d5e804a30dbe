"""RedisSaver under graphs: runs, forks, delta channels, and a thread that goes meanwhile."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from redis_state import (
    RedisStateStore,
    Settings,
)
from redis_state.integrations.langgraph import RedisSaver
from tests.support.agents.checkpoints import listed, put
from tests.support.agents.graphs import adding_deltas, asking, config_of, counting


async def test_a_graph_runs_pauses_and_is_forked(store: RedisStateStore) -> None:
    done: list[Any] = []
    graph = asking(RedisSaver(store), done.append, "pay")
    config = config_of("t")
    await graph.ainvoke({"log": ["start"]}, config)
    assert (await graph.aget_state(config)).interrupts[0].value == {"question": "pay"}
    # Another process goes on.
    other = asking(RedisSaver(store), done.append, "pay")
    assert (await other.ainvoke(Command(resume="yes"), config))["log"] == ["start", "pay yes"]
    history = [state async for state in graph.aget_state_history(config)]
    first = history[-2]
    forked = await graph.aupdate_state(first.config, {"log": ["other"]})
    assert (await graph.aget_state(forked)).values["log"] == ["start", "other"]
    # Nothing of the first branch was overwritten.
    again = [state.values for state in history]
    now = [(await graph.aget_state(state.config)).values for state in history]
    assert now == again
    assert done == [("pay", "yes")]


def test_a_graph_runs_without_a_loop(settings: Settings) -> None:
    with RedisSaver(RedisStateStore(settings)) as saver:
        graph = counting(saver)
        config = config_of("t")
        assert len(graph.invoke({"log": ["x"]}, config)["log"]) == 4
        assert len(list(graph.get_state_history(config))) == 5
        assert saver.get_tuple(config) is not None
        saver.copy_thread("t", "u")
        saver.prune(["t"])
        assert [len(list(saver.list(config_of(thread)))) for thread in "tu"] == [1, 5]
        saver.delete_thread("t")
        assert saver.get_tuple(config) is None


async def test_blocking_calls_work_under_a_running_loop(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    await put(saver, "t", n=1)
    found = saver.get_tuple(config_of("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"n": 1}
    saver.close()


async def test_each_version_of_a_value_is_stored_once(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    await counting(saver, steps=10).ainvoke({"log": ["x"]}, config_of("t"))
    fields = await store.base.scripts.transport.commands.hgetall(store.base.keys.graph_thread("t"))
    values = [name for name in fields[::2] if name.startswith(b"b") and name.endswith(b" log")]
    assert len(values) == 11


@pytest.mark.filterwarnings("ignore")
async def test_delta_channels_are_rebuilt_and_survive_pruning(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    compiled = adding_deltas(saver, steps=12)
    config = config_of("t")
    result = await compiled.ainvoke({"n": 0, "log": ["first"]}, config)
    newest = await saver.aget_tuple(config)
    assert newest is not None
    assert "log" not in newest.checkpoint["channel_values"]
    base: Any = BaseCheckpointSaver
    wanted = await base.aget_delta_channel_history(saver, config=config, channels=["log", "none"])
    found = await saver.aget_delta_channel_history(config=config, channels=["log", "none"])
    assert found == wanted
    before = len(await listed(saver, config))
    await saver.aprune(["t"])
    assert len(await listed(saver, config)) < before
    assert (await compiled.aget_state(config)).values == {"n": 12, "log": result["log"]}


async def test_a_put_whose_parent_is_gone_has_all_values(store: RedisStateStore) -> None:
    saver = RedisSaver(store)

    class Two(TypedDict):
        old: str
        new: int

    async def step(state: Two) -> Any:
        if state["new"] == 2:
            # Another process deletes the thread, it expires, or the server's history goes back.
            await saver.adelete_thread("t")
        return {"new": state["new"] + 1}

    def more(state: Any) -> str:
        return "step" if state["new"] < 4 else END

    graph: Any = StateGraph(Two)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", more)
    compiled = graph.compile(checkpointer=saver)
    given = {"old": "kept", "new": 0}
    # Else puts may still be on their way, and come after the deletion.
    ended = await compiled.ainvoke(given, config_of("t"), durability="sync")
    assert ended == {"old": "kept", "new": 4}
    state = await compiled.aget_state(config_of("t"))
    assert state.values == {"old": "kept", "new": 4}
    async for each in compiled.aget_state_history(config_of("t")):
        assert each.values["old"] == "kept"
