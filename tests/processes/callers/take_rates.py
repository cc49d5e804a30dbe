"""Take from a rate without end; note each take, and that there was nothing to take."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore
from redis_state.worker import Rate
from redis_state.worker.queue.queue import Queue
from redis_state.worker.queue.rates import take

# A place that comes soon is as good as one that is there.
_SOON_MS = 60_000


async def main(argument: dict[str, Any]) -> None:
    """Take until killed. The code gives a rate that is as good as none."""
    rate, waits = Rate(1_000_000, timedelta(hours=1)), False
    options = {"namespace": argument["namespace"]}
    async with RedisStateStore.from_url(argument["url"], **options) as store:
        queue = Queue(store)
        while True:
            wait_ms, _ = await take(queue, "model", rate, 1)
            if wait_ms < _SOON_MS or (not waits and wait_ms > argument["long_ms"]):
                waits = wait_ms >= _SOON_MS
                note(argument["notes"], f"{argument['name']} {'waits' if waits else 'took'}")
            await asyncio.sleep(0.002)


def note(path: str, line: str) -> None:
    """Add a line to the notes of all processes."""
    with Path(path).open("a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
