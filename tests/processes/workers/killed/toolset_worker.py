"""A worker process with an agent of pydantic-ai whose tools are on an MCP server."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic_ai.mcp import MCPToolset

from redis_state import Settings
from redis_state.integrations.pydantic_ai import pydantic_handler
from redis_state.worker import AgentWorker
from tests.chaos.support.notes import note
from tests.support.agents.pydantic_ai import call, durable_agent, scripted


def main(argument: dict[str, Any]) -> None:
    """Serve until death."""
    logging.basicConfig(level=logging.ERROR)
    folder = Path(argument["folder"])

    def first(_: Any) -> Any:
        note(folder, "clerk", "request", 0)
        return [call("look", {"at": "shelf"}), call("buy", {"what": "tea"})]

    def second(_: Any) -> Any:
        note(folder, "clerk", "request", 1)
        return [call("pay")]

    agent = durable_agent(
        scripted(first, second, "all is paid"),
        toolsets=[MCPToolset(argument["mcp_url"], id="shop")],
    )
    AgentWorker(
        {"clerk": pydantic_handler(agent)},
        settings=Settings(url=SecretStr(argument["url"]), namespace=argument["namespace"]),
        queue=argument["queue"],
        lease_s=argument["lease_s"],
        name=argument["name"],
    ).run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
