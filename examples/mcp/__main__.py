"""Call a tool, kill its server and its worker, answer its question, and check what came of it."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult

from redis_state.embedded.server import start_embedded
from redis_state.integrations.mcp import SteadyTransport, TaskFollower
from redis_state.testing import eventually


async def main() -> None:
    """Run the example. Errors: AssertionError if anything happened twice, or not at all."""
    with start_embedded(None) as server, tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        ledger.touch()
        pool = _Pool(server.url, ledger)
        try:
            await _book(pool, ledger)
        finally:
            await pool.aclose()


async def _book(pool: _Pool, ledger: Path) -> None:
    asked: list[str] = []

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        del context
        asked.append(params.message)
        _say(f"asked: {params.message}")
        return ElicitResult(action="accept", content={"pay": True})

    def done() -> Counter[str]:
        return Counter(line.split()[0] for line in ledger.read_text("utf-8").splitlines())

    worker = await pool.start("worker")
    replica = await pool.serve()
    async with httpx2.AsyncClient(transport=SteadyTransport()) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{pool.port}/mcp", http_client=http)
        begun: list[str] = []
        follower = TaskFollower(on_task=begun.append)
        async with Client(transport, extensions=[follower], elicitation_callback=answer) as client:
            calling = asyncio.create_task(client.call_tool("book_trip", {"city": "Oslo"}))
            await eventually(
                lambda: begun and done()["reserve"], "the trip is reserved", timeout_s=30
            )
            for process in (replica, worker):
                process.kill()
                await process.wait()
            _say("the server and the worker were killed")
            await pool.start("worker")
            await pool.serve()
            result: Any = await calling
    said = result.content[0].text
    _say(f"{said}; done: {dict(done())}")
    if said != "Oslo: booked for 360" or done() != {"reserve": 1, "pay": 1} or len(asked) != 1:
        raise AssertionError(f"not once: {said}, {done()}, {asked}")


class _Pool:
    """The processes of the example."""

    def __init__(self, url: str, ledger: Path) -> None:
        self._url = url
        self._environment = {**os.environ, "TRIPS_LEDGER": str(ledger)}
        self._started: list[asyncio.subprocess.Process] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]

    async def serve(self) -> asyncio.subprocess.Process:
        """Start a replica of the server, on the port that the client knows."""
        process = await self.start("server", str(self.port))

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                return False
            writer.close()
            return True

        await eventually(listens, "the MCP server to listen", timeout_s=30)
        return process

    async def start(self, role: str, *more: str) -> asyncio.subprocess.Process:
        """Start a process."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.mcp.trips", role, self._url, *more),
            env=self._environment,
        )
        self._started.append(process)
        return process

    async def aclose(self) -> None:
        """End what runs."""
        for process in self._started:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _say(text: str) -> None:
    print(text)


if __name__ == "__main__":
    argparse.ArgumentParser("python -m examples.mcp", description=__doc__).parse_args()
    asyncio.run(main())
