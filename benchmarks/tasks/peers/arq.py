"""arq: a job with nothing durable but the job itself."""

from __future__ import annotations

import asyncio
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.worker import Worker, func

from benchmarks.tasks.process import SLOTS, Engine, Marks

_POLL_S = 0.01
_READ = 1000


async def prepare(url: str, marks: Marks) -> Engine:
    """Give its pool and its worker."""
    return Arq(await create_pool(RedisSettings.from_dsn(url)), marks)


class Arq:
    """No results are kept, and the queue is polled at once."""

    settings: str = (
        f"max_jobs={SLOTS}, keep_result=0, poll_delay={_POLL_S}, queue_read_limit={_READ}, hiredis"
    )

    def __init__(self, pool: ArqRedis, marks: Marks) -> None:
        self._pool = pool
        self._marks = marks

    async def submit(self, handler: str, number: int) -> None:
        """Enqueue one job."""
        await self._pool.enqueue_job(handler, {"i": number})

    async def serve(self) -> None:
        """Work until cancelled."""

        async def noop(ctx: dict[Any, Any], value: dict[str, int]) -> None:
            del ctx, value
            self._marks()

        worker = Worker(
            [func(noop, name="noop")],
            redis_pool=self._pool,
            max_jobs=SLOTS,
            keep_result=0,
            poll_delay=_POLL_S,
            queue_read_limit=_READ,
            handle_signals=False,
            log_results=False,
        )
        running = asyncio.create_task(worker.async_run())
        try:
            await asyncio.shield(running)
        finally:
            running.cancel()
            await asyncio.wait({running, *worker.tasks.values()})
