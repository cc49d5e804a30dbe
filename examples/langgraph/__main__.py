"""Submit a refund, kill a worker, let eight people answer, and check what came of it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from redis_state import RedisStateStore, TokenResolved
from redis_state.embedded.server import start_embedded
from redis_state.testing import eventually
from redis_state.worker import OpenPause, TaskClient

PEOPLE = ("ann", "ben", "cleo", "dan", "eve", "fay", "gus", "hal")


async def main() -> None:
    """Run the example. Errors: AssertionError if anything happened twice, or not at all."""
    with start_embedded(None) as server, tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger"
        workers = [await _worker(server.url, ledger) for _ in range(2)]
        try:
            async with RedisStateStore.from_url(server.url) as store, TaskClient(store) as client:
                await _refund(client, ledger, workers)
        finally:
            for process in workers:
                if process.returncode is None:
                    process.kill()
                await process.wait()


async def _refund(
    client: TaskClient, ledger: Path, workers: list[asyncio.subprocess.Process]
) -> None:
    task = await client.submit("refund", {"order": "A-17"}, session_id="shop")

    async def open_pauses() -> list[OpenPause]:
        return list(await client.pauses("shop"))

    (pause,) = await eventually(open_pauses, "the graph asks")
    pause_id = pause.pause_id or ""
    _say(f"asked: {pause.payload}")
    workers[0].kill()
    await workers[0].wait()
    _say("one of the two workers was killed")
    answers = await asyncio.gather(
        *(
            client.resolve(pause_id, approved=True, value={"by": name}, actor=name)
            for name in PEOPLE
        ),
        return_exceptions=True,
    )
    refused = sum(isinstance(each, TokenResolved) for each in answers)
    result = await client.result("shop", task)
    lines = (await asyncio.to_thread(ledger.read_text, encoding="utf-8")).splitlines()
    _say(f"{len(PEOPLE) - refused} answer accepted, {refused} refused; refunds: {lines}")
    if refused != len(PEOPLE) - 1 or len(lines) != 1 or result["approved_by"] not in PEOPLE:
        raise AssertionError(f"not once: {answers}, {lines}, {result}")


async def _worker(url: str, ledger: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.langgraph.refund", url, str(ledger)
    )


def _say(text: str) -> None:
    print(text)


if __name__ == "__main__":
    argparse.ArgumentParser("python -m examples.langgraph", description=__doc__).parse_args()
    asyncio.run(main())
