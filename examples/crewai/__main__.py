"""Let a flow ask, kill its process, and let another one answer."""

from __future__ import annotations

import argparse
import asyncio
import sys

from redis_state.embedded.server import start_embedded

PAID = "order 7: 20 euros: yes, looked up 1 time(s)"


async def main() -> None:
    """Run the example. Errors: AssertionError if the flow did not go on where it was."""
    with start_embedded(None) as server:
        asking = await _start(server.url, "ask")
        try:
            await _line(asking, b"asked\n")
        finally:
            asking.kill()
            await asking.wait()
        print("the process that asked was killed")
        out, _ = await (await _start(server.url, "answer")).communicate()
        print(out.decode().strip())
        if PAID not in out.decode():
            raise AssertionError("the flow did not go on where it was")


async def _line(process: asyncio.subprocess.Process, wanted: bytes) -> None:
    """Read what a process prints up to a line."""
    while process.stdout is not None and (line := await process.stdout.readline()):
        if line == wanted:
            return
    raise AssertionError(f"{wanted!r} was not printed")


async def _start(url: str, what: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.crewai.refund", url, what, "refund 7"),
        stdout=asyncio.subprocess.PIPE,
    )


if __name__ == "__main__":
    argparse.ArgumentParser("python -m examples.crewai", description=__doc__).parse_args()
    asyncio.run(main())
