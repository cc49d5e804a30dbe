"""A worker process with an agent of pydantic-ai, which notes what it does and dies at given points.

Each point kills the process once: a later process lives.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from redis_state import Settings
from redis_state.integrations.pydantic_ai import current_task, publish_events, pydantic_handler
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient
from tests.chaos.support.notes import note
from tests.support.agents.pydantic_ai import call, durable_agent, scripted

BEFORE_PAUSES = ("request 0", "buy", "second pause")
AFTER_PAUSES = ("pay b", "request 2")


class Clerk:
    """The agent: it looks and buys at once, pays twice if it may, and tells of it."""

    def __init__(self, folder: Path, points: list[str]) -> None:
        self._folder = folder
        self._points = points
        self._pauses = 0
        self._scripted = scripted(
            [call("look"), call("buy")],
            [call("pay", {"to": "a"}, "a"), call("pay", {"to": "b"}, "b")],
            "all is paid",
        )
        self.agent = durable_agent(
            FunctionModel(stream_function=self._stream),
            durability={"event_stream_handler": publish_events, "pauses": self._pause},
        )
        self.agent.tool_plain(name="look")(self._look)
        self.agent.tool_plain(name="buy")(self._buy)
        self.agent.tool(name="pay", requires_approval=True)(self._pay)

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        self._note("request", number)
        assert self._scripted.stream_function is not None
        async for each in self._scripted.stream_function(messages, info):
            yield each
        self._die(f"request {number}")

    async def _look(self) -> str:
        self._note("look")
        return "seen"

    async def _buy(self) -> str:
        self._note("buy")
        await _recorded("look")
        self._die("buy")
        return "bought"

    async def _pay(self, ctx: RunContext[Any], to: str) -> str:
        self._note("pay", to, current_task().effect_id())
        if to == "b":
            await _recorded("pay")
            self._die("pay b")
        return f"paid {to}"

    def _pause(self, _: RunContext[Any], made: ToolCallPart) -> dict[str, Any]:
        self._pauses += 1
        if self._pauses % 2 == 0:
            self._die("second pause")
        return {"tags": [str(made.tool_call_id)]}

    def _note(self, *facts: Any) -> None:
        note(self._folder, "clerk", *facts)

    def _die(self, point: str) -> None:
        mark = self._folder / point.replace(" ", "-")
        if point not in self._points or mark.exists():
            return
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


async def _recorded(tool: str) -> None:
    """Wait until a call of a tool is recorded."""
    task = current_task()
    client = TaskClient(task.store)

    async def found() -> bool:
        steps = await client.snapshots(task.task.session_id, task.task.task_id)
        return any(f"call_tool:{tool}" in step.step for step in steps)

    await eventually(found, f"{tool} is recorded")


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    clerk = Clerk(Path(argument["folder"]), argument["points"])
    AgentWorker(
        {"clerk": pydantic_handler(clerk.agent)},
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
