"""The store, used as anybody would use it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from benchmarks.measure import Operation
from benchmarks.samples import (
    CONTENT,
    CONTEXT,
    LOADED,
    SESSIONS,
    TASKS,
    session_name,
    task_name,
    update_name,
)
from redis_state import RedisStateStore
from redis_state.models import (
    StateUpdate,
    StoredEvent,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)


async def prepare(url: str) -> dict[str, Operation]:
    """Give the operations on a store of its own namespace."""
    return operations(RedisStateStore.from_url(url, namespace="ours"))


def operations(store: RedisStateStore) -> dict[str, Operation]:
    """Give the operations on a store."""
    made = [task(number) for number in range(TASKS)]

    async def save(number: int) -> None:
        await store.save_task(made[number % TASKS])

    async def load(number: int) -> None:
        place = number % LOADED
        if await store.tasks.load(session_name(place), task_name(place)) is None:
            raise LookupError("nothing was saved before")

    async def append(number: int) -> None:
        await store.save_update(update(number))

    async def event(number: int) -> None:
        await store.save_event(stored_event(number))

    async def ping(_: int) -> None:
        await store.transport.sender.send("PING", repeatable=True)

    return {"append": append, "event": event, "load": load, "ping": ping, "save": save}


def update(number: int, session_id: str | None = None) -> StateUpdate:
    """Make an update."""
    return StateUpdate(
        session_id=session_id or session_name(number),
        task_id=task_name(number % SESSIONS),
        update_id=update_name(number),
        update_type=UpdateType.PROGRESS,
        content=CONTENT,
        step_index=3,
        total_steps=9,
    )


def stored_event(number: int) -> StoredEvent:
    """Make an audit event."""
    return StoredEvent(
        session_name(number), float(number), "node_end", "reviewer", update_name(number), CONTENT
    )


def task(
    number: int, session_id: str | None = None, context: dict[str, Any] = CONTEXT
) -> TaskState:
    """Make a task."""
    session_id, task_id = session_id or session_name(number % TASKS), task_name(number % TASKS)
    now = datetime.now(UTC)
    return TaskState(
        task_id=task_id,
        session_id=session_id,
        status=TaskStatus.RUNNING,
        task_type=TaskType.BACKGROUND,
        priority=0,
        context_snapshot=TaskContextSnapshot(
            session_id=session_id, task_id=task_id, query="review", llm_context=context
        ),
        progress={"done": 3, "of": 9},
        created_at=now,
        updated_at=now,
    )
