"""Start tasks and resolve pauses that other processes want too; print what was won."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis_state import RedisStateStore
from redis_state.errors import TokenResolved
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions


async def main(argument: dict[str, Any]) -> dict[str, list[str]]:
    """Have some callers race for each task and for each token."""
    won: dict[str, list[str]] = {"started": [], "resumed": []}
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        life, decisions = TaskTransitions(store), PauseDecisions(store)

        async def start(task: str, caller: int) -> None:
            owner = f"{argument['name']}-{caller}"
            started = await life.start("s", task, owner=owner, lease_ms=60_000, worker=owner)
            if isinstance(started, StartedRun):
                won["started"].append(task)

        async def resume(token: str, caller: int) -> None:
            try:
                await decisions.decide(token, approved=bool(caller % 2), value=None, actor="me")
            except TokenResolved:
                return
            won["resumed"].append(token)

        callers = range(argument["callers"])
        for task in argument["tasks"]:
            await asyncio.gather(*(start(task, caller) for caller in callers))
        for token in argument["tokens"]:
            await asyncio.gather(*(resume(token, caller) for caller in callers))
    return won


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
