"""Servers of MCP and their workers, killed while a tool runs: another of each goes on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("mcp.server.extension", reason="needs the mcp extra")

from mcp_types import ElicitResult

from redis_state import RedisStateStore, Settings
from redis_state.integrations.mcp import TaskFollower
from redis_state.testing import eventually
from tests.support.mcp.servers import mcp_client
from tests.support.processes import children
from tests.support.processes.forkserver import ForkedProcess
from tests.support.processes.pools import queue_of
from tests.support.servers.faults import Proxy, start_process

pytestmark = pytest.mark.worker


async def started(
    stack: AsyncExitStack, settings: Settings, role: str
) -> tuple[ForkedProcess, str]:
    """Start a process; return it, and what it says when it is ready."""
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "role": role,
    }
    process = await start_process("mcp_replica", argument)
    stack.push_async_callback(children.end, process)
    async with asyncio.timeout(60):
        said = (await process.stdout.readline()).decode().strip()
    assert said, (await process.stderr.read()).decode()
    return process, said


async def killed(process: ForkedProcess) -> None:
    """Kill a process, as kill -9 does."""
    process.kill()
    assert await process.wait() != 0


async def test_a_call_outlives_its_server_and_its_worker(
    store: RedisStateStore, settings: Settings, tmp_path: Path
) -> None:
    asked: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        del context
        asked.append(params.message)
        return ElicitResult(action="accept", content={"ok": True})

    def done() -> Counter[str]:
        lines = (tmp_path / "did").read_text().splitlines() if (tmp_path / "did").exists() else []
        return Counter(json.loads(line)[0] for line in lines)

    async with AsyncExitStack() as stack:
        server, port = await started(stack, settings, "server")
        _, second = await started(stack, settings, "server")
        worker, _ = await started(stack, settings, "worker")
        begun: list[str] = []
        follower = TaskFollower(on_task=begun.append)
        proxy = await stack.enter_async_context(Proxy(f"redis://127.0.0.1:{port}"))
        client = await stack.enter_async_context(
            mcp_client(proxy.port, extensions=[follower], elicitation_callback=elicit)
        )
        calling = asyncio.create_task(client.call_tool("trip", {"folder": str(tmp_path)}))
        await eventually(lambda: begun and done()["hold"] == 1, "the tool holds", timeout_s=30)
        await killed(server)
        await killed(worker)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: proxy.refused > 0, "the client was refused")
        await started(stack, settings, "worker")
        await eventually(lambda: done()["hold"] == 2, "another worker goes on", timeout_s=30)
        proxy.lead_to(f"redis://127.0.0.1:{second}")
        proxy.refuse(refusing=False)
        (tmp_path / "go").touch()
        async with asyncio.timeout(60):
            result: Any = await calling
        assert result.content[0].text == "['first', 'hold', 'last'] accept"
        # Only what was in flight when the worker was killed is done again; the user is asked once.
        assert done() == {"first": 1, "hold": 2, "last": 1}
        assert asked == ["go on?"]


async def test_changes_of_a_killed_replica_and_of_its_successor_are_heard(
    store: RedisStateStore, settings: Settings
) -> None:
    async with AsyncExitStack() as stack:
        first, port = await started(stack, settings, "server")
        _, listens = await started(stack, settings, "server")
        uris = ["test://first", "test://second"]
        client = await stack.enter_async_context(mcp_client(int(listens)))
        heard = await stack.enter_async_context(client.listen(resource_subscriptions=uris))
        hearing = aiter(heard)
        async with mcp_client(int(port)) as caller:
            await caller.call_tool("change", {"uri": uris[0]})
            await killed(first)
        _, port = await started(stack, settings, "server")
        async with mcp_client(int(port)) as caller:
            await caller.call_tool("change", {"uri": uris[1]})
        async with asyncio.timeout(30):
            events: list[Any] = [await anext(hearing) for _ in uris]
        assert [event.uri for event in events] == uris
