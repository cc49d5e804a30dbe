"""Run an agent's task as a worker does; its tool kills the process, once at each of some steps."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from arq.worker import Retry
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.agents import (
    AgentDefinition,
    AgentLoop,
    FrozenMap,
    ScriptedDriver,
    SessionRuntime,
    SubAgents,
    Tool,
    ToolCall,
    ToolRun,
)
from redis_state.primitives.lease import Leases
from redis_state.worker.agents import agent_handler
from redis_state.worker.queue.jobs.job import JobPayload
from redis_state.worker.runs.config import Handler, RunConfig
from redis_state.worker.runs.run_task import run_task
from tests.support.agents.sessions import twenty_steps


def main(argument: dict[str, Any]) -> None:
    """Run the task to its end, or until the tool ends this process."""
    logging.basicConfig(level=logging.WARNING)
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])

    def loop(runtime: SessionRuntime) -> AgentLoop:
        sender = runtime.sessions.base.scripts.transport.sender

        async def look(run: ToolRun) -> dict[str, Any]:
            number = run.arguments["n"]
            key = f"{settings.namespace}:v1:{{killed}}:{number}"
            deadly = number in argument["kills"] and await sender.send(
                "SET", key, 1, "NX", "PX", 60_000, repeatable=False
            )
            if deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"found": number}

        tools = [Tool("look", look)]
        if not argument.get("below"):
            return AgentLoop(twenty_steps(), tools=tools)
        helper = AgentDefinition(name="helper")
        agents = SubAgents(
            runtime, {"helper": helper}, lambda _: twenty_steps(), tools=tools, lease_s=0.5
        )
        asks = FrozenMap(subagent="helper", prompt="look for it")
        call = ToolCall(id="h", name="spawn_subagent", arguments=asks)
        return AgentLoop(ScriptedDriver(call, "thanks"), tools=[agents.tool])

    asyncio.run(take_over(settings, agent_handler(loop, lease_s=0.5), argument))


async def take_over(settings: Settings, handler: Handler, argument: dict[str, Any]) -> None:
    """Run the task as a worker does that was given its job, once nobody else runs it."""
    async with RedisStateStore(settings) as store:
        leases = Leases(store.base.scripts, keep_ms=60_000)
        run_config = RunConfig({"agent": handler}, argument["name"], 0.5, 60.0, 70.0, leases)
        while True:
            with suppress(Retry):
                await run_task(store, run_config, JobPayload("s", argument["task"]), queue="q")
            task = await store.tasks.load("s", argument["task"])
            if task is not None and task.status.is_terminal:
                return
            # Whoever held it and died does so for the rest of its lease.
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
