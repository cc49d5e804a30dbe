"""Run an agent of the OpenAI Agents SDK in a session, outside of a task; its model waits for a line
of the standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Runner
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import LeaseLost
from redis_state.integrations.openai_agents import RedisStateSession
from tests.support.agents.openai_agents import QUIET, agent_of, scripted


async def main(argument: dict[str, Any]) -> None:
    """Say that it asks for its turn, that it has it, and what became of the run."""
    settings = Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"])

    async def hold(_: int) -> None:
        _say("in")
        await asyncio.to_thread(sys.stdin.readline)

    async with RedisStateStore(settings) as store:
        session = RedisStateSession("s", store=store, lease_s=argument["lease_s"])
        agent = agent_of(scripted(f"answer to {argument['name']}", before=hold))
        _say("asks")
        try:
            await Runner.run(agent, argument["name"], session=session, run_config=QUIET)
        except LeaseLost:
            _say("refused")
        else:
            _say("done")


def _say(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - the test reads it


asyncio.run(main(json.loads(sys.argv[1])))
