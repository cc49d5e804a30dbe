"""The outside world of tasks that book things and undo them, and what is reported of it."""

from __future__ import annotations

from typing import Any

from redis_state import RedisStateStore
from redis_state.models import TaskState, UpdateType
from redis_state.worker import RetryPolicy, StepPolicy, TaskContext
from redis_state.worker.tasks.recorded.compensations import read_compensations
from tests.support.processes.pools import SESSION, updates_of
from tests.support.tasks.runs import TASK, make, run_once

ONCE = StepPolicy(retry=RetryPolicy(attempts=1))


class Bookings:
    """The outside world: what was booked and undone, and where it goes wrong."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.broken: dict[str, BaseException] = {}

    def book(self, what: str) -> str:
        """Book something; return its receipt."""
        self.log.append(f"book {what}")
        return f"receipt of {what}"

    def undo(self, receipt: str) -> None:
        """Undo a booking, or fail where that is broken."""
        self.log.append(f"undo {receipt}")
        if receipt in self.broken:
            raise self.broken[receipt]


async def book(ctx: TaskContext, world: Bookings, *what: str, **options: Any) -> None:
    """Book in a step each, and register what undoes it."""
    for each in what:
        receipt = await ctx.step("book", world.book, each)
        ctx.on_failure(world.undo, receipt, **options)


async def fail(store: RedisStateStore, handler: Any, **options: Any) -> TaskState:
    """Make a task, and run it once."""
    await make(store)
    return await run_once(store, handler, steps=options.pop("steps", ONCE), **options)


async def notices(store: RedisStateStore, task_id: str = TASK) -> list[Any]:
    """List the notices of a task."""
    return [
        update.content
        for update in await updates_of(store, task_id)
        if update.update_type is UpdateType.NOTIFICATION
    ]


async def ends(store: RedisStateStore, task_id: str = TASK) -> list[tuple[str, str]]:
    """List the compensations of a task with their states."""
    found = await read_compensations(store, SESSION, task_id)
    return [(one.name, one.state) for one in found]
