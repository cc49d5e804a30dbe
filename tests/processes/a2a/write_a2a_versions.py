"""Write one A2A task by compare-and-set, or follow it, as one process of several."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from a2a.server.cluster import ConcurrentTaskModificationError, StoredTask, TaskVersion
from a2a.types.a2a_pb2 import TaskArtifactUpdateEvent

from redis_state import Settings
from redis_state.integrations.a2a import (
    A2ABackend,
    create_event_stream,
    create_versioned_task_store,
)
from redis_state.testing import eventually
from tests.support.a2a.tasks import CANCELED, COMPLETED, caller, moved, piece, server_on, task

ME = caller()


async def write(backend: A2ABackend, argument: dict[str, Any]) -> list[list[Any]]:
    """Add one's own pieces to the task, each until it was the first; tell each one's version."""
    store = create_versioned_task_store(backend)
    written: list[list[Any]] = []
    for n in range(argument["times"]):
        name = f"{argument['who']}-{n}"
        while True:
            found = await store.get("t", ME)
            prev, version = (found.task, found.version) if found else (None, TaskVersion.MISSING)
            made = task()
            if prev is not None:
                made.CopyFrom(prev)
            made.artifacts.append(piece(name).artifact)
            try:
                saved = await store.save(
                    made, event=piece(name), prev=prev, prev_version=version, context=ME
                )
            except ConcurrentTaskModificationError:
                continue
            written.append([name, hash(saved), saved.is_after(version)])
            break
    # A server that stops ends what it wrote last, so each stays until somebody ended it.
    await follow(backend, argument)
    return written


async def follow(backend: A2ABackend, _: dict[str, Any]) -> list[str]:
    """Tell what a subscriber hears from the first version to the end."""
    store, stream = create_versioned_task_store(backend), create_event_stream(backend)

    async def begun() -> StoredTask | None:
        return await store.get("t", ME)

    await eventually(begun, "the task is there", timeout_s=60)
    events = stream.subscribe("t", after=stream.version_at("t", ME))
    return [
        reported.event.artifact.artifact_id
        if isinstance(reported.event, TaskArtifactUpdateEvent)
        else "end"
        async for reported in events
    ]


async def end(backend: A2ABackend, argument: dict[str, Any]) -> list[str]:
    """Race for the end of tasks, by cancels or by work done; tell which were won."""
    store = create_versioned_task_store(backend)
    state = CANCELED if argument["who"] % 2 else COMPLETED
    won: list[str] = []
    for name in argument["tasks"]:
        found = await store.get(name, ME)
        assert found is not None
        made = task(name, state)
        try:
            await store.save(
                made, event=moved(state), prev=found.task, prev_version=found.version, context=ME
            )
        except ConcurrentTaskModificationError:
            continue
        won.append(name)
    return won


DOES = {"write": write, "follow": follow, "end": end}


async def main() -> None:
    """Do what the argument says and print the result."""
    argument = json.loads(sys.argv[1])
    settings = Settings(url=argument["url"], namespace=argument["namespace"])
    async with server_on(settings) as backend:
        sys.stdout.write(json.dumps(await DOES[argument["does"]](backend, argument)))


if __name__ == "__main__":
    asyncio.run(main())
