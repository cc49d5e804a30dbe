"""The example's task: a planner that outlines a document.

The model is scripted, so that no network is needed; the planner, its tools and its pauses are real.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penguiflow import Node
from penguiflow.catalog import build_catalog, tool
from penguiflow.planner import ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from pydantic import BaseModel

from redis_state.integrations.penguiflow import PenguiflowStateStore
from redis_state.integrations.penguiflow.planners import planner_handler, recorded_model
from redis_state.integrations.penguiflow.tasks import once, task_of
from redis_state.worker import AgentWorker, TaskContext

PLAN: tuple[str, ...] = ("outline", "ask", "publish")
PUBLISHED = "published.log"


class DocumentRequest(BaseModel):
    """Which document a tool is to work on, and in which folder it leaves what it writes."""

    path: str
    output: str


class ToolResult(BaseModel):
    """What a tool has to say, and the process that it ran in."""

    text: str
    pid: int


@tool(desc="outline a document by its headings")
async def outline(args: DocumentRequest, ctx: ToolContext) -> ToolResult:  # noqa: ARG001 - tools take two
    """Read the document's headings."""
    text = await asyncio.to_thread(Path(args.path).read_text, encoding="utf-8", errors="replace")
    headings = re.findall(r"^#{1,3} .+$", text, flags=re.MULTILINE)
    return ToolResult(text="\n".join(headings), pid=os.getpid())


@tool(desc="ask a person whether to publish")
async def ask(args: DocumentRequest, ctx: ToolContext) -> ToolResult:
    """Pause until a person has decided."""
    await ctx.pause("approval_required", {"question": f"publish the outline of {args.path}?"})
    return ToolResult(text="", pid=os.getpid())


@tool(desc="publish the outline")
@once
async def publish(args: DocumentRequest, ctx: ToolContext) -> ToolResult:
    """Leave a line in the log of what was published: what must not happen twice."""
    line = {"task": ctx.tool_context["task_id"], "key": task_of(ctx).effect_id()}

    def write() -> None:
        with (Path(args.output) / PUBLISHED).open("a", encoding="utf-8") as log:
            log.write(json.dumps({**line, "pid": os.getpid()}) + "\n")

    await asyncio.to_thread(write)
    return ToolResult(text="published", pid=os.getpid())


class ScriptedModel:
    """A model that follows the plan. It knows how far that is from nothing but its prompt."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._args = dict(args)

    async def complete(self, *, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        """Return the tool that comes next."""
        done = sum(message["role"] == "assistant" for message in messages)
        if done < len(PLAN):
            action = {"thought": "next", "next_node": PLAN[done], "args": self._args}
        else:
            action = {"thought": "done", "next_node": None, "args": {"answer": "published"}}
        return json.dumps(action)


def build_planner(store: PenguiflowStateStore, ctx: TaskContext) -> ReactPlanner:
    """Make a planner for one document."""
    tools = [outline, ask, publish]
    registry = ModelRegistry()
    for each in tools:
        registry.register(each.__name__, DocumentRequest, ToolResult)
    nodes = [Node(each, name=each.__name__) for each in tools]
    return ReactPlanner(
        llm_client=recorded_model(ScriptedModel(ctx.input["tool_context"]), ctx),
        catalog=build_catalog(nodes, registry),
        state_store=store,
    )


worker: AgentWorker = AgentWorker(
    {"outline_document": planner_handler(build_planner)}, max_tasks=4, grace_s=2.0
)
