"""Run or resume a real ReactPlanner with a scripted model; print what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from penguiflow.catalog import build_catalog, tool
from penguiflow.node import Node
from penguiflow.planner import PlannerPause, ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from pydantic import BaseModel

from redis_state.integrations.penguiflow import create_store


class Question(BaseModel):
    """What a tool is asked."""

    text: str


class Answer(BaseModel):
    """What a tool answers."""

    text: str


class Script:
    """A model that says its lines."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = iter(lines)

    async def complete(self, **_: Any) -> str:
        """Say the next line."""
        return json.dumps(next(self._lines))


@tool(desc="look something up")
async def look_up(args: Question, ctx: ToolContext) -> Answer:
    """Answer at once."""
    return Answer(text=f"looked up {args.text}")


@tool(desc="ask a person")
async def ask(args: Question, ctx: ToolContext) -> Answer:
    """Pause until a person has answered."""
    await ctx.pause("approval_required", {"question": args.text})
    return Answer(text="never said here")


def _planner(store: Any, lines: list[dict[str, Any]]) -> ReactPlanner:
    registry = ModelRegistry()
    for name in ("look_up", "ask"):
        registry.register(name, Question, Answer)
    nodes = [Node(look_up, name="look_up"), Node(ask, name="ask")]
    return ReactPlanner(
        llm_client=Script(lines),
        catalog=build_catalog(nodes, registry),
        state_store=store,
        pause_enabled=True,
    )


async def main(argument: dict[str, Any]) -> dict[str, Any]:
    """Do ``argument["does"]``: run until the pause, or resume a token."""
    store = create_store(url=argument["url"], namespace=argument["namespace"])
    context = {"session_id": "session", "trace_id": "trace"}
    try:
        if argument["does"] == "run":
            lines = [
                {"thought": "t", "next_node": "look_up", "args": {"text": "penguins"}},
                {"thought": "t", "next_node": "ask", "args": {"text": "go on?"}},
            ]
            paused = await _planner(store, lines).run("question", tool_context=context)
            assert isinstance(paused, PlannerPause), paused
            await store.drain()
            return {"token": paused.resume_token, "pid": os.getpid()}
        answer: dict[str, Any] = {"thought": "t", "next_node": None, "args": {"answer": "done"}}
        try:
            result: Any = await _planner(store, [answer]).resume(
                argument["token"], user_input="yes", tool_context=context
            )
        except KeyError:
            return {"won": False, "pid": os.getpid()}
        steps: list[dict[str, Any]] = result.metadata["steps"]
        nodes = [step["action"]["next_node"] for step in steps]
        return {"won": True, "pid": os.getpid(), "steps": nodes}
    finally:
        await store.aclose()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
