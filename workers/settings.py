"""Settings of the deployed pool.

redis-state worker workers.settings:worker  one that outlives restarts of the server
arq workers.settings.WorkerSettings         one worker under arq's own runner

WORKER_METRICS=HOST:PORT in the environment serves Prometheus metrics there; the image sets it.
"""

from __future__ import annotations

import os

from redis_state.worker import AgentWorker
from workers.jobs import HANDLERS

_host, _, _port = os.environ.get("WORKER_METRICS", "").rpartition(":")

worker = AgentWorker(
    HANDLERS, metrics_host=_host or "127.0.0.1", metrics_port=int(_port) if _port else None
)


def __getattr__(name: str) -> type:
    """Make arq's settings when arq reads them: they refuse addresses that `worker` can follow."""
    if name == "WorkerSettings":
        return worker.arq_settings()
    raise AttributeError(name)
