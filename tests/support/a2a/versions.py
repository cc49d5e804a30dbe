"""Versioned tasks of the A2A SDK, saved and read as one caller, and their events."""

from __future__ import annotations

import asyncio
from typing import Any

from a2a.server.cluster import StoredTask, TaskVersion, VersionedEvent
from a2a.types.a2a_pb2 import Task, TaskArtifactUpdateEvent

from redis_state.integrations.a2a.versioned import RedisTaskEventStream, RedisVersionedTaskStore
from tests.support.a2a.tasks import caller

ME = caller()
MISSING = TaskVersion.MISSING


async def save(
    tasks: RedisVersionedTaskStore, made: Task, version: TaskVersion = MISSING, **more: Any
) -> TaskVersion:
    """Save a task over a version, with itself as the event."""
    requested: dict[str, Any] = {"event": made, "prev": None, "context": ME, **more}
    return await tasks.save(made, prev_version=version, **requested)


async def read(tasks: RedisVersionedTaskStore, task_id: str = "t", context: Any = ME) -> StoredTask:
    """Read a task that is there."""
    found = await tasks.get(task_id, context)
    assert found is not None
    return found


async def hear(
    stream: RedisTaskEventStream, after: TaskVersion, task_id: str = "t"
) -> list[VersionedEvent]:
    """Read the events of a task from a version on, until it ends."""
    async with asyncio.timeout(60):
        return [event async for event in stream.subscribe(task_id, after=after)]


def names(events: list[VersionedEvent]) -> list[str]:
    """Tell events by what they bring; others by their kind."""
    return [
        reported.event.artifact.artifact_id
        if isinstance(reported.event, TaskArtifactUpdateEvent)
        else type(reported.event).__name__
        for reported in events
    ]
