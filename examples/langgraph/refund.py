"""The graph, and the worker that serves it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from redis_state.integrations.langgraph import RedisSaver, graph_handler
from redis_state.settings import make_settings
from redis_state.worker import AgentWorker


class Refund(TypedDict):
    """What the graph knows of an order."""

    order: str
    amount: int
    letter: str
    approved_by: str


def build(saver: RedisSaver, ledger: Path) -> Any:
    """Compile the graph. The ledger is the outside world: a line for each refund."""

    def look_up(state: Refund) -> dict[str, Any]:
        return {"amount": 5 * len(state["order"])}

    def write(state: Refund) -> dict[str, Any]:
        # A scripted model.
        return {"letter": f"We refund {state['amount']} for order {state['order']}."}

    def ask(state: Refund) -> dict[str, Any]:
        answer = interrupt({"question": state["letter"], "amount": state["amount"]})
        return {"approved_by": answer["by"]}

    def pay(state: Refund) -> dict[str, Any]:
        line = f"{state['order']} {state['amount']} {state['approved_by']} {os.getpid()}\n"
        with ledger.open("a", encoding="utf-8") as book:
            book.write(line)
        return {}

    graph: Any = StateGraph(Refund)
    steps = {"look_up": look_up, "write": write, "ask": ask, "pay": pay}
    for name, step in steps.items():
        graph.add_node(name, step)
    for one, following in zip([START, *steps], [*steps, END], strict=True):
        graph.add_edge(one, following)
    return graph.compile(checkpointer=saver)


def worker(url: str, ledger: Path) -> AgentWorker:
    """Make the worker."""
    handler = graph_handler(lambda saver: build(saver, ledger), stream_mode="updates")
    return AgentWorker({"refund": handler}, make_settings(url), lease_s=1.0)


if __name__ == "__main__":
    asyncio.run(worker(sys.argv[1], Path(sys.argv[2])).serve())
