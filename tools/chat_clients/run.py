"""Run the official clients of AG-UI and of the AI SDK against the gateway, in Node.

It needs Node 20 or later with npm, and a network. It serves a gateway and a worker on an embedded
server, or on that of ``REDIS_STATE_TEST_URL``. A failed test ends it with status 1.
``RANDOM_RUNS`` is how many random runs of AG-UI's are tried.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from redis_state import RedisStateStore
from redis_state.gateway import BrowserTokens, GatewayLimits, create_gateway
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from tests.support.chat.chats import HANDLERS

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build" / "chat-clients"
SCOPES = ("read:*", "submit:*", "resolve:*", "steer:*")


async def rambling(ctx: TaskContext) -> Any:
    """Show anything, in any order."""
    plan = random.Random(ctx.task.task_id)  # the same in each run
    for number in range(plan.randint(0, 12)):
        match plan.randint(0, 6):
            case 0:
                await ctx.thinking(f"thought {number}")
            case 1:
                await ctx.tool_call(f"tool {number}", {"n": number}, plan.choice([None, 1, "x"]))
            case 2:
                await ctx.progress(plan.choice(["a", "b"]), step=number)
            case 3:
                await ctx.publish_value(plan.choice(["a/b", "c~"]), number)
            case 4:
                await ctx.result(plan.choice(["a text", {"a": 1}, ""]))
            case _:
                async with ctx.text("answer", join_ms=1) as out:
                    for token in range(plan.randint(0, 5)):
                        out.write(f"{number}.{token} ")
                        await asyncio.sleep(0.002)
    if plan.random() < 0.2:  # noqa: PLR2004 - a fifth of them
        raise RuntimeError("it fails")
    return plan.choice([None, "a result", 1])


async def main() -> int:
    """Run the clients; return the status to exit with."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        print("needs Node 20 or later with npm")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = ("package.json", "ag_ui.test.mjs", "ai_sdk.test.mjs")
    for name in names:
        shutil.copy(HERE / name, FOLDER / name)
    if await _run(npm, "install", "--no-audit", "--no-fund", "--loglevel=error"):
        print("npm cannot install the clients")
        return 2
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder:
        url = os.environ.get("REDIS_STATE_TEST_URL", f"embedded://{folder}")
        async with RedisStateStore.from_url(url, namespace="chat-clients") as store:
            return await _try(store, node)


async def _try(store: RedisStateStore, node: str) -> int:
    tokens = BrowserTokens(secrets.token_urlsafe(32))
    gateway = create_gateway(store, auth=tokens, limits=GatewayLimits(requests_per_s=None))
    handlers = {**HANDLERS, "random": rambling}
    worker = AgentWorker(handlers, settings=store.settings, poll_s=0.01)
    async with TaskClient(store) as client:

        async def signal(request: Request) -> Response:
            await client.signal(request.path_params["session"], request.path_params["task"], "go")
            return Response()

        told = Route("/signal/{session}/{task}", signal, methods=["POST"])
        app = Starlette(routes=[told, Mount("/agents", gateway)])
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
            serving = asyncio.create_task(server.serve([listening]))
            working = asyncio.create_task(worker.serve(handle_signals=False))
            here = f"http://127.0.0.1:{listening.getsockname()[1]}"
            status = await _run(
                *(node, "--test", "--test-reporter=spec", "ag_ui.test.mjs", "ai_sdk.test.mjs"),
                GATEWAY_URL=f"{here}/agents",
                GATEWAY_SIGNAL=f"{here}/signal",
                GATEWAY_TOKEN=tokens.mint("ann", SCOPES),
            )
            gateway.end_streams()
            server.should_exit = True
            working.cancel()
            await asyncio.wait({serving, working})
    await gateway.aclose()
    return min(status, 1)


async def _run(*command: str, **environment: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=FOLDER, env={**os.environ, **environment}
    )
    return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
