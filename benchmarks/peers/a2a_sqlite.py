"""The A2A SDK's database store on a SQLite file. Needs the environment of the A2A peers."""

from __future__ import annotations

import importlib
import os
import tempfile
from typing import Any

from benchmarks.measure import Operation
from benchmarks.peers.a2a import operations


async def prepare(_url: str) -> dict[str, Operation]:
    """Give the operations of its task store."""
    tasks: Any = importlib.import_module("a2a.server.tasks")
    engines: Any = importlib.import_module("sqlalchemy.ext.asyncio")
    # The run's own folder, which goes with the run.
    folder = os.environ.get("REDIS_STATE_BENCH_FOLDER") or tempfile.mkdtemp()
    store = tasks.DatabaseTaskStore(
        engines.create_async_engine(f"sqlite+aiosqlite:///{folder}/tasks.db")
    )
    await store.initialize()
    return operations(store)
