"""Graphs of LangGraph that tests run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt


class Log(TypedDict):
    """The state of the graphs: what was done."""

    log: Annotated[list[str], operator.add]


def counting(saver: Any, *, steps: int = 3) -> Any:
    """Compile a graph that appends to its log in a loop."""

    def step(state: Log) -> Log:
        return {"log": [f"step {len(state['log'])}"]}

    def more(state: Log) -> str:
        return "step" if len(state["log"]) <= steps else END

    graph: Any = StateGraph(Log)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", more)
    return graph.compile(checkpointer=saver)


def asking(saver: Any, effect: Callable[[Any], object], *questions: str) -> Any:
    """Compile a graph whose nodes ask side by side, and do something with the answers."""
    graph: Any = StateGraph(Log)
    for question in questions:

        def ask(_: Log, question: str = question) -> Log:
            answer = interrupt({"question": question})
            effect((question, answer))
            return {"log": [f"{question} {answer}"]}

        graph.add_node(question, ask)
        graph.add_edge(START, question)
        graph.add_edge(question, END)
    return graph.compile(checkpointer=saver)


def _joined(log: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*log, *(item for write in writes for item in write)]


class Deltas(TypedDict):
    """A state whose log is stored as what was added to it, with a snapshot now and then."""

    n: int
    log: Annotated[list[str], DeltaChannel(_joined, snapshot_frequency=5)]


def adding_deltas(saver: Any, *, steps: int) -> Any:
    """Compile a graph whose two nodes add to a delta channel, one of them in a loop."""

    def step(state: Deltas) -> Any:
        return {"n": state["n"] + 1, "log": [f"{state['n']}"]}

    def beside(_: Deltas) -> Any:
        return {"log": ["b"]}

    def more(state: Deltas) -> str:
        return "a" if state["n"] < steps else END

    graph: Any = StateGraph(Deltas)
    graph.add_node("a", step)
    graph.add_node("b", beside)
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    graph.add_conditional_edges("a", more)
    return graph.compile(checkpointer=saver)


def config_of(thread: str, **more: Any) -> Any:
    """Name a thread."""
    return {"configurable": {"thread_id": thread, **more}}
