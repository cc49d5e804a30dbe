"""A real ReactPlanner without tools, whose model answers as scripted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penguiflow.catalog import build_catalog, tool
from penguiflow.node import Node
from penguiflow.planner import ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from pydantic import BaseModel


class Question(BaseModel):
    """What a tool is asked."""

    text: str


class Answer(BaseModel):
    """What a tool answers."""

    text: str


@tool(desc="look something up")
async def look_up(args: Question, ctx: ToolContext) -> Answer:
    """Answer at once."""
    return Answer(text=f"looked up {args.text}")


class Model:
    """Answer every question at once, and every request for a summary. Note what is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.summarised: list[list[str]] = []

    async def complete(
        self, *, messages: Sequence[Mapping[str, Any]], **_: Any
    ) -> str | tuple[str, float]:
        """Say the next line."""
        text = str(messages[-1]["content"])
        if text.startswith('{"previous_summary"'):
            request = json.loads(text)
            names = [turn["user"] for turn in request["turns"]]
            self.summarised.append(names)
            before = request["previous_summary"].removeprefix("<session_summary>")
            before = before.removesuffix("</session_summary>")
            return "Here: " + json.dumps({"summary": " ".join([*before.split(), *names])}), 0.1
        self.shown.append(json.dumps([*messages]))
        return json.dumps({"thought": "t", "next_node": None, "args": {"raw_answer": "yes"}})


def planner_of(store: Any, memory: Any, model: Model) -> ReactPlanner:
    """Make a planner with a memory."""
    registry = ModelRegistry()
    registry.register("look_up", Question, Answer)
    return ReactPlanner(
        llm_client=model,
        catalog=build_catalog([Node(look_up, name="look_up")], registry),
        state_store=store,
        short_term_memory=memory,
    )
