"""Worker processes that run PenguiFlow, for the length of a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually
from redis_state.worker import WorkerRegistry
from tests.support.processes import children
from tests.support.processes.pools import queue_of
from tests.support.servers.faults import start_process


@asynccontextmanager
async def worker(
    settings: Settings, folder: Path, name: str, **options: Any
) -> AsyncGenerator[children.Process]:
    """Run a worker process, which is there when the block begins, whatever becomes of it."""
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "queue": queue_of(settings),
        "effects": str(folder / "effects"),
        "name": name,
        **options,
    }
    process = await start_process("penguin_worker", argument)
    try:
        async with RedisStateStore(settings) as store:
            registry = WorkerRegistry(store)

            async def there() -> bool:
                return any(info.name == name for info in await registry.list())

            await eventually(there, f"worker {name} is there", timeout_s=60)
        yield process
    finally:
        await children.end(process)


async def end(process: children.Process) -> int:
    """Tell a worker to stop, and wait for that; return its status."""
    process.terminate()
    async with asyncio.timeout(60):
        return await process.wait()
