"""Execute agents in processes of their own that kill themselves at a save; then go on.

Each execution is a fork of this process, so that every death is a real one and none costs a start.
Prints, for each namespace, how its processes ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentLoop,
    AgentSession,
    SessionRuntime,
    SessionStage,
    SessionStore,
    Tool,
    ToolRun,
    run_session,
)
from redis_state.errors import SessionConflict
from tests.support.agents.sessions import EXECUTION, same_agent, twenty_steps

LEASE_S = 0.1


async def execute(url: str, namespace: str, stage: str, at: int) -> None:
    """Execute the agent of a namespace; die at the nth call of a stage, counted from 0."""
    async with RedisStateStore.from_url(url, namespace=namespace) as store:

        async def look(run: ToolRun) -> dict[str, Any]:
            key, sender = f"{namespace}:v1:{{runs}}:a", store.transport.sender
            await sender.send("ZADD", key, 0, run.id, repeatable=True)
            await sender.send("EXPIRE", key, 3600, repeatable=True)
            return {"found": run.arguments["n"]}

        runtime = SessionRuntime(SessionStore(store))
        with suppress(SessionConflict):
            await runtime.create(same_agent("a"))
        calls = 0

        def die(session: AgentSession) -> AgentSession:
            nonlocal calls
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return session

        if stage:
            runtime.add_hook(SessionStage(stage), die)
        loop = AgentLoop(twenty_steps(), tools=[Tool("look", look)])
        async with runtime.holding("a", lease_s=LEASE_S, wait_s=30) as lease:
            await run_session(runtime, "a", loop, execution_id=EXECUTION, fence=lease.fence)


def forked(url: str, namespace: str, stage: str, at: int) -> int:
    """Execute in a fork; tell how it ended: 0, or the signal that killed it as a negative."""
    child = os.fork()
    if child == 0:
        _in_child(url, namespace, stage, at)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(url: str, namespace: str, stage: str, at: int) -> NoReturn:
    status = 1
    try:
        asyncio.run(execute(url, namespace, stage, at))
        status = 0
    finally:
        os._exit(status)


def main(argument: dict[str, Any]) -> dict[str, list[int]]:
    """Execute each agent until nothing kills it any more."""
    url = argument["url"]
    return {
        namespace: [forked(url, namespace, stage, at), forked(url, namespace, "", 0)]
        for namespace, stage, at in argument["points"]
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
