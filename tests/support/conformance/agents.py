"""The errand as an agent of pydantic-ai, whose model is scripted."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from redis_state.integrations.pydantic_ai import publish_events, pydantic_handler
from redis_state.testing.conformance import Errand, HostUnderTest
from redis_state.worker import Handler
from tests.support.agents.pydantic_ai import Turn, call, durable_agent, returns, scripted


def agent_of(errand: Errand) -> Agent[Any, Any]:
    """Make the agent: one tool for each effect, of which the last one needs an approval."""

    def turn(tool: str) -> Any:
        def made(messages: list[ModelMessage]) -> Turn:
            return [call(tool, {"mark": _mark_of(messages)})]

        return made

    def tell(messages: list[ModelMessage]) -> str:
        return ", ".join(str(each) for each in returns(messages).values())

    agent = durable_agent(
        scripted(turn("look"), turn("draft"), turn("send"), tell),
        durability={"event_stream_handler": publish_events},
    )

    async def look(mark: str) -> str:
        """Look."""
        return await errand.effect("look", mark)

    async def draft(mark: str) -> str:
        """Draft."""
        return await errand.effect("draft", mark)

    async def send(mark: str, answer: str = "") -> str:
        """Send."""
        return f"{await errand.effect('send', mark)}, {answer}"

    agent.tool_plain(look)
    agent.tool_plain(draft)
    agent.tool_plain(requires_approval=True)(send)
    return agent


def handler(errand: Errand) -> Handler:
    """Make the handler."""
    return pydantic_handler(agent_of(errand))


def _mark_of(messages: list[ModelMessage]) -> str:
    (prompt,) = [part.content for part in messages[0].parts if part.part_kind == "user-prompt"]
    return str(prompt)


HOST = HostUnderTest(
    name="pydantic-ai",
    handler=handler,
    decision=lambda mark, answer: {"mark": mark, "answer": answer},
)
