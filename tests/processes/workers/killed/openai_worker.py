"""A worker process with an agent of the OpenAI Agents SDK, which notes what it does and dies at
given points.

Each point kills the process once: a later process lives.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents import function_tool
from agents.items import ToolApprovalItem
from pydantic import SecretStr

from redis_state import Settings
from redis_state.integrations.openai_agents import current_task, openai_handler
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient
from tests.chaos.support.notes import note
from tests.support.agents.openai_agents import QUIET, agent_of, call, scripted

BEFORE_PAUSES = ("request 0", "buy", "second pause")
AFTER_PAUSES = ("pay b", "request 2")


class Clerk:
    """The agent: it looks and buys at once, pays twice if it may, and tells of it."""

    def __init__(self, folder: Path, points: list[str]) -> None:
        self._folder = folder
        self._points = points
        self._pauses = 0
        model = scripted(
            [call("look"), call("buy")],
            [call("pay", {"to": "a"}, "a"), call("pay", {"to": "b"}, "b")],
            "all is paid",
            before=self._requested,
            after=self._answered,
        )
        tools: list[Any] = [
            function_tool(self._look, name_override="look"),
            function_tool(self._buy, name_override="buy"),
            function_tool(self._pay, name_override="pay", needs_approval=True),
        ]
        self.handler = openai_handler(
            agent_of(model, tools=tools),
            history=True,
            publish=True,
            pauses=self._pause,
            run_config=QUIET,
        )

    async def _requested(self, number: int) -> None:
        self._note("request", number)

    def _answered(self, number: int) -> None:
        self._die(f"request {number}")

    async def _look(self) -> str:
        self._note("look")
        return "seen"

    async def _buy(self) -> str:
        self._note("buy")
        await _recorded("look")
        self._die("buy")
        return "bought"

    async def _pay(self, to: str) -> str:
        self._note("pay", to, current_task().effect_id())
        if to == "b":
            await _recorded("pay")
            self._die("pay b")
        return f"paid {to}"

    def _pause(self, made: ToolApprovalItem) -> dict[str, Any]:
        self._pauses += 1
        if self._pauses % 2 == 0:
            self._die("second pause")
        return {"tags": [str(made.call_id)]}

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
        return any(step.step.startswith(tool) for step in steps)

    await eventually(found, f"{tool} is recorded")


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    clerk = Clerk(Path(argument["folder"]), argument["points"])
    AgentWorker(
        {"clerk": clerk.handler},
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
