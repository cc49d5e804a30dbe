"""Worker processes with any option, for the length of a block."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually
from redis_state.worker import TaskClient, WorkerInfo
from tests.support.processes import children
from tests.support.processes.pools import SESSION, queue_of, updates_of
from tests.support.servers.faults import needs_arqs_runner, start_process


@asynccontextmanager
async def worker_process(
    settings: Settings, name: str, **options: Any
) -> AsyncGenerator[children.Process, None]:
    """Run a worker process for the length of the block, whatever state it is left in."""
    if options.get("runner") == "arq":
        needs_arqs_runner(settings.url.get_secret_value())
    program: str = options.pop("program", "supervised_worker")
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "name": name,
        **({} if "queues" in options else {"queue": queue_of(settings)}),
        **options,
    }
    process = await start_process(program, argument)
    try:
        yield process
    finally:
        await children.end(process)


async def stop(process: children.Process, how: signal.Signals = signal.SIGTERM) -> int:
    """Send a signal and wait for the end; return the status."""
    process.send_signal(how)
    async with asyncio.timeout(60):
        return await process.wait()


async def has_begun(store: RedisStateStore, task: str) -> bool:
    """Tell whether a task has told progress."""
    return any(update.update_type.value == "PROGRESS" for update in await updates_of(store, task))


async def begin(
    client: TaskClient, store: RedisStateStore, handler: str, task_input: Any = None
) -> str:
    """Submit a task and wait until it runs."""
    task = await client.submit(handler, task_input, session_id=SESSION)
    await eventually(lambda: has_begun(store, task), f"{handler} runs")
    return task


async def listed(client: TaskClient, *names: str) -> dict[str, WorkerInfo]:
    """Wait until exactly these workers are listed; return them by name."""

    async def found() -> dict[str, WorkerInfo] | None:
        infos = await client.workers()
        return (
            {info.name: info for info in infos}
            if sorted(info.name for info in infos) == sorted(names)
            else None
        )

    infos = await eventually(found, f"the workers are {', '.join(names) or 'none'}")
    return infos or {}
