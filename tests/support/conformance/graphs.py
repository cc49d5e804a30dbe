"""The errand as a graph of LangGraph."""

from __future__ import annotations

from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from redis_state.integrations.langgraph import RedisSaver, graph_handler
from redis_state.testing.conformance import Errand, HostUnderTest
from redis_state.worker import Handler
from tests.support.agents.graphs import Log


def graph_of(saver: RedisSaver, errand: Errand) -> Any:
    """Compile the graph: a node for each effect, and one that asks."""

    def making(effect: str) -> Any:
        async def node(state: Log) -> Log:
            return {"log": [await errand.effect(effect, state["log"][0])]}

        return node

    def ask(state: Log) -> Log:
        return {"log": [str(interrupt({"question": "Send it?", "draft": state["log"]}))]}

    def answered(state: Log) -> str:
        return END if "rejected" in state["log"][-1] else "send"

    graph: Any = StateGraph(Log)
    for effect in ("look", "draft", "send"):
        graph.add_node(effect, making(effect))
    graph.add_node("ask", ask)
    graph.add_edge(START, "look")
    graph.add_edge("look", "draft")
    graph.add_edge("draft", "ask")
    graph.add_conditional_edges("ask", answered, ["send", END])
    graph.add_edge("send", END)
    return graph.compile(checkpointer=saver)


def handler(errand: Errand) -> Handler:
    """Make the handler."""
    return graph_handler(lambda saver: graph_of(saver, errand))


HOST = HostUnderTest(name="LangGraph", handler=handler, task_input=lambda mark: {"log": [mark]})
