"""One replica of the tests' MCP server, or a worker of its tools, until it is killed."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.integrations.mcp import mcp_handlers
from redis_state.worker import AgentWorker
from tests.support.mcp.servers import serving_mcp
from tests.support.mcp.tools import TOOLS


async def main(argument: dict[str, Any]) -> None:
    """Serve, and say on which port."""
    url, namespace = SecretStr(argument["url"]), argument["namespace"]
    settings = Settings(url=url, namespace=namespace)
    if argument["role"] == "worker":
        worker = AgentWorker(
            mcp_handlers(*TOOLS), settings=settings, queue=argument["queue"], lease_s=0.5
        )
        print("serving", flush=True)  # noqa: T201 - the test reads it
        await worker.serve()
        return
    async with (
        RedisStateStore(settings) as store,
        serving_mcp(store, lease_s=argument.get("lease_s", 15.0)) as port,
    ):
        print(port, flush=True)  # noqa: T201 - the test reads it
        await asyncio.Event().wait()


asyncio.run(main(json.loads(sys.argv[1])))
