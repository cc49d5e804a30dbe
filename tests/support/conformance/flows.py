"""The errand as a flow of PenguiFlow, and as a planner of its."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from penguiflow import Message, Node, NodePolicy, create
from penguiflow.catalog import build_catalog, tool
from penguiflow.planner import ReactPlanner, ToolContext
from penguiflow.registry import ModelRegistry
from pydantic import BaseModel

from redis_state.integrations.penguiflow.flows import flow_handler
from redis_state.integrations.penguiflow.planners import planner_handler, recorded_model
from redis_state.integrations.penguiflow.tasks import once, task_of
from redis_state.models import UpdateType
from redis_state.testing.conformance import Errand, HostUnderTest
from redis_state.worker import Handler, TaskContext


def flow(errand: Errand) -> Handler:
    """Make the handler of a flow: a node for each effect, of which the last one asks first."""

    async def make(message: Message, effect: str) -> str:
        task = task_of(message)
        text: str = await task.keyed_step("effect", effect, errand.effect, effect, task.input)
        await task.progress(text)
        return text

    async def look(message: Message, _: Any) -> Message:
        return message.model_copy(update={"payload": [await make(message, "look")]})

    async def draft(message: Message, _: Any) -> Message:
        texts = [*message.payload, await make(message, "draft")]
        return message.model_copy(update={"payload": texts})

    async def send(message: Message, _: Any) -> Message:
        decision = await task_of(message).approval("Send it?", message.payload)
        if not decision.approved:
            return message
        texts = [*message.payload, await make(message, "send"), decision.value]
        return message.model_copy(update={"payload": texts})

    def build(store: Any) -> Any:
        policy = NodePolicy(validate="none", max_retries=0)
        first, second, third = (
            Node(node, name=node.__name__, policy=policy) for node in (look, draft, send)
        )
        return create(first.to(second), second.to(third), third.to(), state_store=store)

    return flow_handler(build)


class Words(BaseModel):
    """What a tool takes and gives."""

    text: str
    answer: str = ""


class Plan:
    """A model that goes through a plan, by how much of it the prompt shows it has behind it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    async def complete(self, *, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        """Name the next tool, or tell what all gave."""
        done = sum(message["role"] == "assistant" for message in messages)
        shown = json.dumps([*messages])
        plan = ("look", "draft", "ask", "send")
        # Shown once: in the first prompt behind the pause.
        heard = re.search(r"Resume input: ([^\"\\]*)", shown)
        answer = heard.group(1) if heard else ""
        if done < len(plan) and not answer.startswith("rejected"):
            action = {"next_node": plan[done], "args": {"text": self._mark, "answer": answer}}
            return json.dumps({"thought": "", **action})
        made = re.findall(rf"\w+ of {self._mark}(?:, [^\"\\]+)?", shown)
        return json.dumps({"thought": "", "next_node": None, "args": {"answer": "; ".join(made)}})


FLOW = HostUnderTest(name="PenguiFlow, a flow", handler=flow)


def planner(errand: Errand) -> Handler:
    """Make the handler of a planner: a tool for each effect, and one that asks."""

    def build(store: Any, ctx: TaskContext) -> ReactPlanner:
        async def make(effect: str, mark: str) -> Words:
            made = Words(text=await errand.effect(effect, mark))
            await ctx.emit(UpdateType.PROGRESS, {"text": made.text}, key=effect)
            return made

        @tool(desc="look")
        @once
        async def look(args: Words, _: ToolContext) -> Words:
            return await make("look", args.text)

        @tool(desc="draft")
        @once
        async def draft(args: Words, _: ToolContext) -> Words:
            return await make("draft", args.text)

        @tool(desc="ask a person")
        async def ask(args: Words, context: ToolContext) -> Words:
            await context.pause("approval_required", {"question": "Send it?", "of": args.text})
            return args

        @tool(desc="send")
        @once
        async def send(args: Words, _: ToolContext) -> Words:
            made = await make("send", args.text)
            return Words(text=f"{made.text}, {args.answer}")

        tools = [look, draft, ask, send]
        registry = ModelRegistry()
        for each in tools:
            registry.register(each.__name__, Words, Words)
        return ReactPlanner(
            llm_client=recorded_model(Plan(ctx.input), ctx),
            catalog=build_catalog([Node(each, name=each.__name__) for each in tools], registry),
            state_store=store,
            max_iters=20,
        )

    return planner_handler(build)


PLANNER = HostUnderTest(name="PenguiFlow, a planner", handler=planner)
