"""A worker process whose task clears its session of the OpenAI Agents SDK, adds an item, and dies
before its journal has that. A later process lives.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import Settings
from redis_state.integrations.agent_runs.scopes import current_scope
from redis_state.integrations.openai_agents import RedisStateSession, durable
from redis_state.integrations.openai_agents.history import RunHistory
from redis_state.worker import AgentWorker, TaskContext


class Dying(RedisStateSession):
    """A session that is written, and whose process is killed before anyone hears of it."""

    mark: Path

    async def change_once(self, name: str, **change: Any) -> None:
        """Make the change, and die behind it."""
        await super().change_once(name, **change)
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)

    async def clerk(ctx: TaskContext) -> None:
        scope = current_scope()
        if scope is None:
            raise RuntimeError("no scope")
        session = Dying(ctx.task.session_id, store=ctx.store, lease_s=argument["lease_s"])
        session.mark = Path(argument["folder"]) / "died"
        history = RunHistory(session, scope)
        await history.clear_session()
        await history.add_items([{"role": "user", "content": "new"}])
        await history.save()

    AgentWorker(
        {"clerk": durable(clerk)},
        settings=Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"]),
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
