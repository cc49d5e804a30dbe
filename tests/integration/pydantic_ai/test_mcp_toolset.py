"""Tools of a real MCP server are steps: a worker that is killed repeats the call in flight only."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip(
    "pydantic_ai.mcp", reason="needs pydantic-ai with its mcp extra", exc_type=ImportError
)
pytest.importorskip("mcp.server.mcpserver", reason="needs the mcp extra")

from mcp.server.mcpserver import MCPServer

from redis_state import RedisStateStore
from redis_state.testing import eventually
from tests.chaos.support.crew import recorded
from tests.support.mcp.servers import serving_app
from tests.support.processes.pools import SESSION, client_of
from tests.support.processes.worker_processes import stop, worker_process

pytestmark = pytest.mark.worker


async def test_a_killed_worker_repeats_the_call_in_flight_only(
    store: RedisStateStore, tmp_path: Path
) -> None:
    done: Counter[str] = Counter()
    buying = asyncio.Event()
    server = MCPServer("shop", log_level="CRITICAL")

    @server.tool()
    async def look(at: str) -> str:
        done[f"look {at}"] += 1
        return "seen"

    @server.tool()
    async def buy(what: str) -> str:
        done[f"buy {what}"] += 1
        if not buying.is_set():
            buying.set()
            await asyncio.Event().wait()
        return "bought"

    @server.tool()
    async def pay() -> str:
        done["pay"] += 1
        return "paid"

    async with serving_app(server.streamable_http_app()) as port, client_of(store) as client:
        options = {
            "program": "toolset_worker",
            "folder": str(tmp_path),
            "lease_s": 0.5,
            "mcp_url": f"http://127.0.0.1:{port}/mcp",
        }
        task = await client.submit("clerk", "go", session_id=SESSION)

        async def looked() -> bool:
            steps = await client.snapshots(SESSION, task)
            return any("look" in step.step for step in steps)

        async with worker_process(store.settings, "first", **options) as process:
            await eventually(buying.is_set, "buy is in flight", timeout_s=60)
            await eventually(looked, "look is recorded")
            assert await stop(process, signal.SIGKILL) == -signal.SIGKILL
        assert done == {"look shelf": 1, "buy tea": 1}
        async with worker_process(store.settings, "second", **options):
            assert await client.result(SESSION, task, timeout_s=60) == "all is paid"
    assert done == {"look shelf": 1, "buy tea": 2, "pay": 1}
    assert Counter(map(tuple, recorded(tmp_path, "clerk"))) == {
        ("request", 0): 1,
        ("request", 1): 1,
    }
