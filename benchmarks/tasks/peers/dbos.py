"""DBOS: needs its environment, and a PostgreSQL if the URL is of one."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from benchmarks.tasks.process import SLOTS, Engine, Marks

_POOL = 20


async def prepare(url: str, marks: Marks) -> Engine:
    """Launch it, with its workflows."""
    dbos: Any = importlib.import_module("dbos")
    config = {
        "name": "bench",
        "system_database_url": url,
        "sys_db_pool_size": _POOL,
        "log_level": "ERROR",
    }
    dbos.DBOS(config=config)

    async def work(steps: int) -> int:
        return steps

    step = dbos.DBOS.step()(work)

    async def noop(number: int) -> None:
        del number
        marks()

    async def steps5(number: int) -> None:
        del number
        for _ in range(5):
            await step(5)
            marks()

    workflow = dbos.DBOS.workflow()
    workflows = {"noop": workflow(noop), "steps5": workflow(steps5)}
    await asyncio.to_thread(dbos.DBOS.launch)
    return Dbos(dbos.DBOS, workflows)


class Dbos:
    """Workflows are started where they run, which costs less than its queues do."""

    settings: str = f"start_workflow_async, {SLOTS} at a time, sys_db_pool_size={_POOL}"

    def __init__(self, dbos: Any, workflows: dict[str, Any]) -> None:
        self._dbos = dbos
        self._workflows = workflows
        self._waiting: list[tuple[Any, int]] = []

    async def submit(self, handler: str, number: int) -> None:
        """Note a workflow that `serve` starts."""
        self._waiting.append((self._workflows[handler], number))

    async def serve(self) -> None:
        """Run what was noted."""
        waiting, self._waiting = iter(self._waiting), []

        async def slot() -> None:
            for workflow, number in waiting:
                handle = await self._dbos.start_workflow_async(workflow, number)
                await handle.get_result()

        await asyncio.gather(*(slot() for _ in range(SLOTS)))
