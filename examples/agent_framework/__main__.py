"""Kill a workflow in its second step, and let another process continue it."""

from __future__ import annotations

import argparse
import asyncio
import sys

from redis_state.embedded.server import start_embedded

CONTINUED = ["writing", "published report with facts of tides"]


async def main() -> None:
    """Run the example. Errors: AssertionError if the workflow did not go on where it was."""
    with start_embedded(None) as server:
        killed = await _start(server.url, "begin")
        try:
            for expected in (b"collected tides\n", b"writing\n"):
                if killed.stdout is None or await killed.stdout.readline() != expected:
                    raise AssertionError("the workflow did not begin")
        finally:
            killed.kill()
            await killed.wait()
        print("collected tides; the process was killed while it wrote")
        out, _ = await (await _start(server.url, "continue")).communicate()
        print(out.decode().strip())
        if out.decode().splitlines() != CONTINUED:
            raise AssertionError("the workflow did not go on where it was")


async def _start(url: str, what: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.agent_framework.report", url, what),
        stdout=asyncio.subprocess.PIPE,
    )


if __name__ == "__main__":
    argparse.ArgumentParser("python -m examples.agent_framework", description=__doc__).parse_args()
    asyncio.run(main())
