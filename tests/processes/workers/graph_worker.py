"""A worker whose handler is a graph that notes what it does in a folder, to be killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from pydantic import SecretStr

from redis_state import Settings
from redis_state.integrations.langgraph import graph_handler
from redis_state.worker import AgentWorker
from tests.chaos.support.notes import note
from tests.support.agents.graphs import Log

SLOW_S = 0.05


def build(saver: Any, folder: Path, worker: str) -> Any:
    """Compile: eight slow steps, a question, and what is done with its answer."""

    async def step(state: Log) -> Log:
        number = len(state["log"])
        await asyncio.sleep(SLOW_S)
        note(folder, "steps", worker, f"step {number}")
        return {"log": [f"step {number}"]}

    def ask(_: Log) -> Log:
        answer = interrupt("pay?")
        note(folder, "paid", worker, f"{answer}")
        return {"log": [f"paid {answer}"]}

    def more(state: Log) -> str:
        return "step" if len(state["log"]) <= 8 else "ask"

    graph: Any = StateGraph(Log)
    graph.add_node("step", step)
    graph.add_node("ask", ask)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", more)
    graph.add_edge("ask", END)
    return graph.compile(checkpointer=saver)


async def main(argument: dict[str, Any]) -> None:
    """Serve the graph until killed."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    folder = Path(argument["folder"])
    handler = graph_handler(
        lambda saver: build(saver, folder, argument["name"]),
        stream_mode=["updates", "values", "custom"],
    )
    worker = AgentWorker(
        {"graph": handler},
        settings=settings,
        queue=argument["queue"],
        name=argument["name"],
        poll_s=0.01,
        lease_s=1.5,
    )
    await worker.serve()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
