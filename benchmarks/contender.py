"""The process of one contender: ``python -m benchmarks.contender <name> <url>``."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys

from benchmarks.measure import answer
from benchmarks.samples import LOADED


async def main() -> None:
    """Prepare the contender, then measure what is asked for until the input ends."""
    name, url = sys.argv[1:]
    operations = await importlib.import_module(f"benchmarks.peers.{name}").prepare(url)
    # What is loaded must be there, however few a slow contender saves in its time.
    for number in range(LOADED):
        await operations["save"](number)
    await answer(operations)


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    # Peers leave connections and threads behind, which would be waited for and warned about.
    os._exit(0)
