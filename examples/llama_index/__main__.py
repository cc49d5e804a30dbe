"""Let a run ask, kill its server, and let another server answer."""

from __future__ import annotations

import argparse
import asyncio
import sys

from redis_state.embedded.server import start_embedded

DECIDED = "20 euros: yes"


async def main() -> None:
    """Run the example. Errors: AssertionError if the run did not go on where it was."""
    with start_embedded(None) as server:
        asking = await _start(server.url, "ask")
        try:
            await _line(asking, b"asked\n")
        finally:
            asking.kill()
            await asking.wait()
        print("the server that asked was killed")
        out, _ = await (await _start(server.url, "answer")).communicate()
        print(out.decode().strip())
        if out.decode().splitlines() != [DECIDED]:
            raise AssertionError("the run did not go on where it was")


async def _line(process: asyncio.subprocess.Process, wanted: bytes) -> None:
    """Read what a process prints up to a line."""
    while process.stdout is not None and (line := await process.stdout.readline()):
        if line == wanted:
            return
    raise AssertionError(f"{wanted!r} was not printed")


async def _start(url: str, what: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.llama_index.approval", url, what, "approval 7"),
        stdout=asyncio.subprocess.PIPE,
    )


if __name__ == "__main__":
    argparse.ArgumentParser("python -m examples.llama_index", description=__doc__).parse_args()
    asyncio.run(main())
