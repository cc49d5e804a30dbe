"""PenguiFlow's planners and flows as the tests' pool runs them. What they do is told in a file."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penguiflow import Message, Node, NodePolicy, PenguiFlow, create
from penguiflow.catalog import build_catalog, tool
from penguiflow.planner import ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from pydantic import BaseModel

from redis_state.integrations.penguiflow.planners import recorded_model
from redis_state.integrations.penguiflow.tasks import once, task_of
from redis_state.worker import TaskContext

PLAN = ["look_up", "ask", "act", "linger"]
END = {"thought": "t", "next_node": None, "args": {"answer": "done"}}


class Words(BaseModel):
    """What a tool is asked and answers."""

    text: str


class Effects:
    """A file in which each effect leaves a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **line: Any) -> None:
        """Leave a line, on the disk even if this process is killed."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"pid": os.getpid(), **line}) + "\n")

    def read(self, what: str) -> list[dict[str, Any]]:
        """Return the lines about something."""
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if line["what"] == what]


class Script:
    """A model that goes through a plan, by how much of it the prompt shows it has behind it."""

    def __init__(self, plan: Sequence[str], effects: Effects) -> None:
        self._plan = plan
        self._effects = effects

    async def complete(self, *, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        """Name the next tool."""
        done = sum(message["role"] == "assistant" for message in messages)
        shown = json.dumps([*messages])
        heard = [word for word in ("cold", "hot") if f"it is {word}" in shown]
        self._effects.add(what="model", done=done, heard=heard)
        if done >= len(self._plan):
            return json.dumps(END)
        action = {"thought": "t", "next_node": self._plan[done], "args": {"text": f"step {done}"}}
        return json.dumps(action)


def planner_of(effects: Effects, plan: Sequence[str] = PLAN) -> Any:
    """Make a factory of planners that go through a plan."""

    @tool(desc="look something up")
    async def look_up(args: Words, ctx: ToolContext) -> Words:
        effects.add(what="look_up")
        return Words(text=f"looked up {args.text}")

    @tool(desc="ask a person")
    async def ask(args: Words, ctx: ToolContext) -> Words:
        await ctx.pause("approval_required", {"question": args.text})
        return args

    @tool(desc="do what cannot be undone")
    @once
    async def act(args: Words, ctx: ToolContext) -> Words:
        effects.add(what="act", key=task_of(ctx).effect_id())
        return args

    @tool(desc="wait for the end of the process, the first time")
    async def linger(args: Words, ctx: ToolContext) -> Words:
        effects.add(what="linger")
        if len(effects.read("linger")) == 1:
            await asyncio.Event().wait()
        return args

    @tool(desc="fail")
    async def fail(args: Words, ctx: ToolContext) -> Words:
        raise RuntimeError("as it was told to")

    def build(store: Any, ctx: TaskContext) -> ReactPlanner:
        tools = [look_up, ask, act, linger, fail]
        registry = ModelRegistry()
        for each in tools:
            registry.register(each.__name__, Words, Words)
        nodes = [Node(each, name=each.__name__) for each in tools]
        return ReactPlanner(
            llm_client=recorded_model(Script(plan, effects), ctx),
            catalog=build_catalog(nodes, registry),
            state_store=store,
            max_iters=20,
        )

    return build


def flow_of(effects: Effects) -> Any:
    """Make a factory of flows. "fail" and "hang" do so at once, "stuck" in the second node."""

    async def check(message: Message, _: Any) -> Message:
        text: str = message.payload
        effects.add(what="check", text=text)
        if text == "fail":
            raise ValueError("as it was told to")
        if text == "hang" or (text == "once" and len(effects.read("check")) == 1):
            await asyncio.Event().wait()
        return message

    async def charge(message: Message, _: Any) -> Message:
        text: str = message.payload
        if text == "stuck":
            await asyncio.Event().wait()

        def work() -> str:
            effects.add(what="charge", text=text)
            return f"charged {text}"

        receipt: str = await task_of(message).keyed_step("charge", text, work)
        return message.model_copy(update={"payload": receipt})

    def build(store: Any) -> PenguiFlow:
        effects.add(what="built")
        policy = NodePolicy(validate="none", max_retries=0)
        first, second = (
            Node(check, name="check", policy=policy),
            Node(charge, name="charge", policy=policy),
        )
        return create(first.to(second), state_store=store)

    return build
