"""Run a StreamingSession's task until it is told to stop, or steer it; print what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from penguiflow.sessions import StreamingSession, TaskResult, TaskRuntime
from penguiflow.state import SteeringEvent, SteeringEventType, UpdateType

from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.sessions import open_session
from redis_state.testing import eventually


def _say(word: Any) -> None:
    print(json.dumps(word), flush=True)  # noqa: T201


async def _listen(runtime: TaskRuntime) -> TaskResult:
    heard: list[str] = []
    while "stop" not in heard:
        text: str = (await runtime.steering.next()).payload["text"]
        heard.append(text)
        runtime.emit_update(UpdateType.PROGRESS, {"pid": os.getpid(), "heard": text})
        _say(text)
    return TaskResult(payload=heard)


async def _run(session: StreamingSession) -> dict[str, Any]:
    """Take the session over: start each of its tasks again, and one if it has none."""
    found = {task.task_id: task.status.value for task in await session.list_tasks()}
    for task_id in found or ["task"]:
        await session.registry.remove_task(task_id)
        await session.spawn_task(_listen, task_id=task_id)

    async def over() -> bool:
        return all(task.status.value == "COMPLETE" for task in await session.list_tasks())

    await eventually(over, "all tasks are over", timeout_s=60)
    results = [task.result for task in await session.list_tasks()]
    return {"pid": os.getpid(), "found": found, "results": results}


async def main(argument: dict[str, Any]) -> Any:
    """Run the session, or save ``argument["texts"]`` as steering."""
    store: Any = create_store(url=argument["url"], namespace=argument["namespace"])
    try:
        if "texts" not in argument:
            async with open_session(store, "session") as session:
                return await _run(session)
        for text in argument["texts"]:
            event = SteeringEvent(
                session_id="session",
                task_id="task",
                event_type=SteeringEventType.USER_MESSAGE,
                payload={"text": text},
                source="user",
            )
            await store.save_steering(event)
        return os.getpid()
    finally:
        await store.aclose()


if __name__ == "__main__":
    _say(asyncio.run(main(json.loads(sys.argv[1]))))
