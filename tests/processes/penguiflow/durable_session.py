"""Leave a session behind with a patch that waits, decide on that, or change the session's context.

Print what was seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from penguiflow.sessions import (
    ContextPatch,
    MergeStrategy,
    StreamingSession,
    TaskResult,
    TaskRuntime,
)
from penguiflow.state import TaskType

from redis_state.integrations.penguiflow import create_store
from redis_state.integrations.penguiflow.sessions import open_session
from redis_state.testing import eventually


async def _work(runtime: TaskRuntime) -> TaskResult:
    snapshot = runtime.context_snapshot
    patch = ContextPatch(
        task_id="task",
        digest=["found"],
        source_context_version=snapshot.context_version,
        source_context_hash=snapshot.context_hash,
    )
    return TaskResult(payload={"hits": 3}, context_patch=patch)


async def _leave(session: StreamingSession, store: Any) -> None:
    """Die with everything open."""
    session.update_context(llm_context={"goal": "report"}, tool_context={"n": 1})
    group = await session.resolve_or_create_group(
        group_name="crew", turn_id="turn", merge_strategy=MergeStrategy.HUMAN_GATED
    )
    await session.add_task_to_group(group.group_id, "task")
    await session.add_task_to_group(group.group_id, "other")
    await session.spawn_task(
        _work,
        task_id="task",
        task_type=TaskType.BACKGROUND,
        merge_strategy=MergeStrategy.HUMAN_GATED,
        group_id=group.group_id,
    )

    def recorded() -> bool:
        return bool(session.pending_patches) and group.completed_task_ids == ["task"]

    await eventually(recorded, "the patch waits and the group knows")
    await store.drain()
    (patch_id,) = session.pending_patches
    print(json.dumps({"patch_id": patch_id, "group_id": group.group_id}), flush=True)  # noqa: T201
    os._exit(0)


async def _decide(session: StreamingSession, argument: dict[str, Any]) -> dict[str, Any]:
    """Decide on the patch, then end and seal the group."""
    seen = {
        "context": session.get_context(),
        "version": session.context_version,
        "pending": list(session.pending_patches),
    }
    won = await session.apply_pending_patch(patch_id=argument["patch_id"])
    sealed = await session.seal_group(argument["group_id"])
    await session.mark_task_complete_in_group(argument["group_id"], "other", success=True)
    group, late = await session.wait_for_group_completion(argument["group_id"], timeout_s=20)
    results = session.get_background_results()
    return {
        **seen,
        "won": won,
        "sealed": sealed,
        "group": None if group is None or late else group.status,
        "results": {name: result.payload for name, result in results.items()},
        "left": list(session.pending_patches),
    }


async def main(argument: dict[str, Any]) -> Any:
    """Open the session and do what ``argument["does"]`` says."""
    async with (
        create_store(url=argument["url"], namespace=argument["namespace"]) as store,
        open_session(store, "session") as session,
    ):
        if argument["does"] == "leave":
            await _leave(session, store)
        if argument["does"] == "update":
            session.update_context(**argument["parts"])
            return session.get_context()
        return await _decide(session, argument)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))  # noqa: T201
