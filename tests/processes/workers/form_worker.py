"""A worker process whose handler asks for an order by a form, and writes down what it does."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.worker import AgentWorker, TaskContext
from tests.chaos.support.notes import note

FORM = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1, "maximum": 100},
        "by": {"type": "string"},
    },
    "required": ["amount", "by"],
    "additionalProperties": False,
}


class Orders:
    """The handler, and where it writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def order(self, ctx: TaskContext) -> Any:
        """Open the form, work on beside it until death, wait for it, and buy."""
        await ctx.step("prepare", self._note, "prepare", ctx.task.task_id)
        pause = await ctx.open_pause("order", schema=FORM)
        if ctx.attempt == 1 and ctx.input == "work on":
            self._note("works on", ctx.task.task_id)
            await asyncio.Event().wait()
        decision = await ctx.wait_for(pause)
        await ctx.step("buy", self._note, "buy", ctx.task.task_id, decision.value)
        return [decision.actor, decision.value]

    def _note(self, *facts: Any) -> None:
        note(self._folder, "orders", *facts)


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])
    AgentWorker(
        {"order": Orders(Path(argument["folder"])).order},
        settings=settings,
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
