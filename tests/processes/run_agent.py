"""Execute agents in processes of their own that kill themselves at a save; then go on.

Each execution is a fork of this process, so that every death is a real one and none costs a start.
Prints, for each session, how its processes ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
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
from tests.agents import EXECUTION, twenty_steps

LEASE_S = 0.1


async def execute(argument: dict[str, Any], session_id: str, stage: str, at: int) -> None:
    """Execute the session's agent; die at the nth call of a stage, counted from 0."""
    async with RedisStateStore.from_url(argument["url"], namespace=argument["namespace"]) as store:
        sender = store.transport.sender

        async def look(run: ToolRun) -> dict[str, Any]:
            key = f"{argument['namespace']}:v1:{{runs}}:{session_id}"
            await sender.send("SADD", key, run.id, repeatable=True)
            await sender.send("EXPIRE", key, 3600, repeatable=True)
            return {"found": run.arguments["n"]}

        runtime = SessionRuntime(SessionStore(store))
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
        async with runtime.holding(session_id, lease_s=LEASE_S, wait_s=30) as lease:
            await run_session(runtime, session_id, loop, execution_id=EXECUTION, fence=lease.fence)


def forked(argument: dict[str, Any], session_id: str, stage: str, at: int) -> int:
    """Execute in a fork; tell how it ended: 0, or the signal that killed it as a negative."""
    child = os.fork()
    if child == 0:
        _in_child(argument, session_id, stage, at)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_child(argument: dict[str, Any], session_id: str, stage: str, at: int) -> NoReturn:
    status = 1
    try:
        asyncio.run(execute(argument, session_id, stage, at))
        status = 0
    finally:
        os._exit(status)


def main(argument: dict[str, Any]) -> dict[str, list[int]]:
    """Execute each session until nothing kills it any more."""
    return {
        session_id: [
            forked(argument, session_id, stage, at),
            forked(argument, session_id, "", 0),
        ]
        for session_id, stage, at in argument["sessions"]
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
