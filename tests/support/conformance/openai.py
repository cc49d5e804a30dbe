"""The errand as an agent of the OpenAI Agents SDK, whose model is scripted."""

from __future__ import annotations

from typing import Any

from agents import function_tool

from redis_state.integrations.openai_agents import current_decision, openai_handler
from redis_state.testing.conformance import Errand, HostUnderTest
from redis_state.worker import Handler
from tests.support.agents.openai_agents import QUIET, Items, Turn, agent_of, call, outputs, scripted

TOOLS = ("look", "draft", "send")


def _write(items: Items) -> Turn:
    found = outputs(items)
    if len(found) == len(TOOLS):
        return ", ".join(str(each) for each in found.values())
    return [call(TOOLS[len(found)], {"mark": items[0]["content"]})]


def handler(errand: Errand) -> Handler:
    """Make the handler: one tool for each effect, of which the last one needs an approval."""

    async def look(mark: str) -> str:
        return await errand.effect("look", mark)

    async def draft(mark: str) -> str:
        return await errand.effect("draft", mark)

    async def send(mark: str) -> str:
        decision = current_decision()
        answer: Any = None if decision is None else decision.value
        return f"{await errand.effect('send', mark)}, {answer}"

    tools: list[Any] = [
        function_tool(look),
        function_tool(draft),
        function_tool(send, needs_approval=True),
    ]
    agent = agent_of(scripted(_write), tools=tools)
    pauses = {"schema": {"type": "string"}}
    return openai_handler(agent, publish=True, pauses=pauses, run_config=QUIET)


HOST = HostUnderTest(name="OpenAI Agents SDK", handler=handler)
