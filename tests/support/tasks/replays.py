"""What a task has published, and what it is told, while it is run again and again."""

from __future__ import annotations

from typing import Any

from redis_state import RedisStateStore
from redis_state.models import SteeringEvent, SteeringEventType, UpdateType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION
from tests.support.tasks.runs import TASK


async def emitted(store: RedisStateStore) -> list[Any]:
    """Give what the handler has published, without the task's changes of state."""
    reported = await store.list_updates(SESSION, task_id=TASK, limit=10_000)
    kinds = (UpdateType.STATUS_CHANGE, UpdateType.NOTIFICATION)
    return [update.content for update in reported if update.update_type not in kinds]


async def say(store: RedisStateStore, ctx: TaskContext | None, text: str) -> None:
    """Steer the task; wait until a run that is there has heard it."""
    event = SteeringEvent(
        session_id=SESSION,
        task_id=TASK,
        event_type=SteeringEventType.USER_MESSAGE,
        payload={"text": text},
    )
    await store.save_steering(event)
    if ctx is not None:
        heard = ctx.inbox._waiting
        await eventually(lambda: event.event_id in {one.event_id for one in heard}, "it is heard")


def texts(events: list[SteeringEvent]) -> list[str]:
    """Give the texts of messages."""
    return [event.payload["text"] for event in events]
