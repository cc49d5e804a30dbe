"""Tasks of PenguiFlow's A2A server, and stores of them."""

from __future__ import annotations

import asyncio
from typing import Any

from penguiflow_a2a.models import (
    ListTasksResponse,
    PushNotificationConfig,
    StreamResponse,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)

from redis_state import Settings
from redis_state.integrations.penguiflow import PenguiflowA2ATaskStore, create_a2a_task_store
from tests.processes.a2a.use_a2a_tasks import TASK, message

WORKING = TaskStatus(state=TaskState.WORKING, timestamp="2026-01-01T00:00:00.000Z")
DONE = TaskStatus(state=TaskState.COMPLETED, message=message("bye"))


def make(settings: Settings, **options: Any) -> PenguiflowA2ATaskStore:
    """Make a store on a namespace."""
    url = options.pop("url", settings.url.get_secret_value())
    return create_a2a_task_store(url=url, namespace=settings.namespace, **options)


def task(task_id: str = TASK, context_id: str = "context", **more: Any) -> Task:
    """Make a task that was submitted."""
    submitted = TaskStatus(state=TaskState.SUBMITTED)
    fields: dict[str, Any] = {"status": submitted, **more}
    return Task(id=task_id, context_id=context_id, **fields)


def push(name: str | None, **more: Any) -> TaskPushNotificationConfig:
    """Make a push configuration."""
    config = PushNotificationConfig(url="https://hook", **more)
    return TaskPushNotificationConfig(name=name, push_notification_config=config)


async def listing(store: Any, **more: Any) -> ListTasksResponse:
    """List tasks under the filters that are given."""
    requested: dict[str, Any] = {
        "context_id": None,
        "status": None,
        "page_size": 50,
        "page_token": None,
        "history_length": None,
        "status_timestamp_after": None,
        "include_artifacts": True,
    }
    found: ListTasksResponse = await store.list_tasks(**{**requested, **more})
    return found


async def hear(queue: asyncio.Queue[StreamResponse], count: int) -> list[StreamResponse]:
    """Wait for so many updates."""
    async with asyncio.timeout(60):
        return [await queue.get() for _ in range(count)]
