"""A worker process of a check, which lives as long as the process that started it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Final

from redis_state.testing.conformance.host import Errand, load_host
from redis_state.testing.conformance.orders import HANDLER, VARIABLE, WorkerOrder
from redis_state.worker import AgentWorker

_CHECK_S: Final = 0.5


async def serve(order: WorkerOrder) -> None:
    """Serve until SIGTERM, or until the process that started this one is gone."""
    errand = Errand(Path(order.folder), kill=order.kill, hold=order.hold)
    worker = AgentWorker(
        {HANDLER: load_host(order.reference).handler(errand)},
        settings=order.settings(),
        name=order.name,
        max_tasks=32,
        lease_s=order.lease_s,
        poll_s=0.01,
        grace_s=order.grace_s,
        heartbeat="thread",
    )
    serving = asyncio.create_task(worker.serve())
    while not serving.done():
        await asyncio.wait({serving}, timeout=_CHECK_S)
        if not _is_alive(order.parent):
            serving.cancel()
    serving.result()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(serve(WorkerOrder(**json.loads(os.environ.pop(VARIABLE)))))
