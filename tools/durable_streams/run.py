"""Run the published conformance tests of the Durable Streams protocol against the gateway.

It needs Node 18 or later with npm, and a network. It serves a gateway on an embedded server, or on
that of ``REDIS_STATE_TEST_URL``, and prints how many tests of each group have passed. A failed test
ends it with status 1; groups that are not served are named, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import uvicorn

from redis_state import RedisStateStore
from redis_state.gateway import GatewayLimits, Public, create_gateway

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "durable-streams"
# What the gateway does not serve.
NOT_SERVED = {
    "Reserved subscription APIs": "an option of the suite: webhooks and leases over streams, "
    "for which there are tasks",
}
# The suite's own limit of 5 s is too short for its longest tests on a busy machine.
TEST_TIMEOUT_MS = 60_000


async def main() -> int:
    """Run the suite; return the status to exit with."""
    npm = shutil.which("npm")
    if npm is None:
        print("needs Node 18 or later with npm")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "suite.test.mjs"):
        shutil.copy(HERE / name, FOLDER / name)
    if await _run(npm, "install", "--no-audit", "--no-fund", "--loglevel=error"):
        print("npm cannot install the suite")
        return 2
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder:
        url = os.environ.get("REDIS_STATE_TEST_URL", f"embedded://{folder}")
        async with RedisStateStore.from_url(url, namespace="durable-streams") as store:
            await _try(store)
    return _report(json.loads((FOLDER / "report.json").read_text(encoding="utf-8")))


async def _try(store: RedisStateStore) -> None:
    app = create_gateway(
        store,
        auth=Public(subject="suite", scopes=["read:*", "write:*"]),
        # The suite's own page; its long polls end when they end.
        cors=["https://example.com"],
        limits=GatewayLimits(requests_per_s=None, streams=1_000, long_poll_s=2),
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        # A busy client may use a connection at the moment at which it is closed for being idle.
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_keep_alive=60)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        port = listening.getsockname()[1]
        await _run(
            str(FOLDER / "node_modules" / ".bin" / "vitest"),
            *("run", "suite.test.mjs", "--reporter=json", "--outputFile=report.json"),
            f"--testTimeout={TEST_TIMEOUT_MS}",
            CONFORMANCE_TEST_URL=f"http://127.0.0.1:{port}",
        )
        app.end_streams()
        server.should_exit = True
        await serving
    await app.aclose()


async def _run(*command: str, **environment: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=FOLDER,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


def _report(found: dict[str, Any]) -> int:
    groups: dict[str, Counter[str]] = {}
    failed: list[str] = []
    for file in found["testResults"]:
        for test in file["assertionResults"]:
            groups.setdefault(test["ancestorTitles"][0], Counter())[test["status"]] += 1
            if test["status"] == "failed":
                failed.append(f"{test['fullName']}: {test['failureMessages'][0].splitlines()[0]}")
    lines = ["| tests | passed | of |", "| --- | --- | --- |"]
    for group, counted in groups.items():
        lines.append(f"| {group} | {counted['passed']} | {counted.total()} |")
    passed = sum(counted["passed"] for counted in groups.values())
    total = sum(counted.total() for counted in groups.values())
    lines += [f"| **all** | **{passed}** | **{total}** |", ""]
    lines += [f"not served: {group}: {reason}" for group, reason in NOT_SERVED.items()]
    left = sum(groups[group].total() for group in NOT_SERVED if group in groups)
    print("\n".join([*lines, *(f"FAILED {each}" for each in failed)]))
    return 0 if passed == total - left else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
