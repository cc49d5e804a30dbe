"""Events of the task state manager's tasks, and what a subscriber hears of them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from redis_state.integrations.embabel.task_state_manager import TaskEvent, TaskStateManager
from tests.processes.a2a.keep_task_states import name_of

MESSAGE: dict[str, Any] = {"kind": "message", "messageId": "m", "role": "agent", "parts": []}
TASK: dict[str, Any] = {
    "kind": "task",
    "id": "t",
    "contextId": "c",
    "status": {"state": "input-required"},
}


async def hear(tasks: TaskStateManager, after: str | None = None, most: int = 0) -> list[TaskEvent]:
    """Read the events of the task `t` until it ends, or so many."""
    heard: list[TaskEvent] = []
    async with asyncio.timeout(60), aclosing(tasks.subscribe("t", after=after)) as events:
        async for event in events:
            heard.append(event)
            if len(heard) == most:
                break
    return heard


def names(heard: list[TaskEvent]) -> list[str]:
    """Give the names of events."""
    return [name_of(one.event) for one in heard]
