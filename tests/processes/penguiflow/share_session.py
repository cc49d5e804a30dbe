"""Run tasks of a session that other processes share; print what became of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from penguiflow.sessions import ContextPatch, StreamingSession, TaskResult, TaskRuntime
from penguiflow.state import UpdateType

from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.sessions import open_session
from redis_state.testing import eventually


def _say(word: Any) -> None:
    print(json.dumps(word), flush=True)  # noqa: T201


async def _listen(runtime: TaskRuntime) -> TaskResult:
    heard: list[str] = []
    while "stop" not in heard:
        text: str = (await runtime.steering.next()).payload.get("text", "")
        heard.append(text)
        runtime.emit_update(UpdateType.PROGRESS, {"heard": text})
    patch = ContextPatch(task_id=runtime.state.task_id, digest=heard)
    return TaskResult(payload={"digest": heard, "pid": os.getpid()}, context_patch=patch)


async def _run(session: StreamingSession, names: list[str]) -> dict[str, Any]:
    group = await session.resolve_or_create_group(group_name="crew", turn_id="turn")
    for name in names:
        await session.add_task_to_group(group.group_id, name)
    await session.seal_group(group.group_id)
    for name in names:
        await session.spawn_task(_listen, task_id=name, group_id=group.group_id)

    async def over() -> dict[str, str] | None:
        # As this process knows them: what it runs has ended for it.
        handles: dict[str, Any] = getattr(session, "_task_handles")  # noqa: B009
        if any(name in handles for name in names):
            return None
        return {task.task_id: task.status.value for task in await session.list_tasks()}

    _say({"group": group.group_id})
    return {"statuses": await eventually(over, "all tasks are over", timeout_s=60)}


async def main(argument: dict[str, Any]) -> Any:
    """Open the session, run the tasks named in ``argument``, and wait for their end."""
    options = {"session_task_lease": argument["lease_s"]} if "lease_s" in argument else {}
    store = create_store(url=argument["url"], namespace=argument["namespace"], **options)
    async with store, open_session(store, "session") as session:
        return await _run(session, argument["tasks"])


if __name__ == "__main__":
    _say(asyncio.run(main(json.loads(sys.argv[1]))))
