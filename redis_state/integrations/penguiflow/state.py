"""PenguiFlow's state store on Redis: name ``create_store`` where PenguiFlow asks for one.

    penguiflow-admin history --state-store redis_state.integrations.penguiflow:create_store TRACE

The store is RedisStateStore, speaking PenguiFlow's own classes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from penguiflow.artifacts import ArtifactRef, ArtifactRetentionConfig
from penguiflow.planner import PlannerEvent, Trajectory
from penguiflow.planner.trajectory import BackgroundTaskResult
from penguiflow.sessions.models import ContextPatch, MergeStrategy, TaskGroup
from penguiflow.sessions.session import PendingContextPatch, SessionContext
from penguiflow.state import (
    RemoteBinding,
    StateUpdate,
    SteeringEvent,
    StoredEvent,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
)

from redis_state.integrations.penguiflow.adapter.typed_store import TypedStore
from redis_state.models import ArtifactRetentionConfig as Retention
from redis_state.settings import make_settings
from redis_state.store import HostTypes
from redis_state.stores.contexts.session_context import ContextTypes

TYPES: HostTypes = HostTypes(
    stored_event=StoredEvent,
    remote_binding=RemoteBinding,
    task_state=TaskState,
    task_context_snapshot=TaskContextSnapshot,
    task_status=TaskStatus,
    task_type=TaskType,
    state_update=StateUpdate,
    steering_event=SteeringEvent,
    planner_event=PlannerEvent,
    trajectory=Trajectory,
    artifact_ref=ArtifactRef,
    context=ContextTypes(
        session_context=SessionContext,
        background_task_result=BackgroundTaskResult,
        context_patch=ContextPatch,
        pending_context_patch=PendingContextPatch,
        merge_strategy=MergeStrategy,
    ),
    task_group=TaskGroup,
)


class PenguiflowStateStore(TypedStore):
    """RedisStateStore bound to PenguiFlow's classes, with the names that older hosts look for."""

    async def save_task_update(self, update: Any) -> None:
        """Save an update. The old name of `save_update`."""
        await self.save_update(update)

    async def list_task_updates(self, session_id: str, **options: Any) -> list[Any]:
        """List updates. The old name of `list_updates`."""
        return list(await self.list_updates(session_id, **options))

    async def get_events(self, trace_id: str) -> list[Any]:
        """List planner events. The old name of `list_planner_events`."""
        return list(await self.list_planner_events(trace_id))

    def clear_session(self, session_id: str) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Delete what is kept of a session, and return when it is done.

        Not a coroutine, as PenguiFlow's reference has it: it holds up the event loop that calls
        it. Calls of that loop that nobody has awaited yet may come after it.
        """
        _run_apart(super().clear_session(session_id))

    def clear(self) -> None:
        """Delete everything under this store's namespace, and return when it is done. For tests."""
        _run_apart(self.delete_everything())


def create_store(
    *,
    url: str | None = None,
    artifact_retention: ArtifactRetentionConfig | None = None,
    **options: Any,
) -> PenguiflowStateStore:
    """Make the state store for PenguiFlow. No I/O; the first call connects.

    The server is ``url``, else ``REDIS_STATE_URL``. Options are the fields of `Settings`, among
    them ``namespace``, ``max_events_per_trace``, ``max_updates_per_session``,
    ``max_steering_events_per_session`` and ``max_planner_events_per_trace``. With
    ``durable_events="postgresql://…"`` audit events and history are in PostgreSQL, pauses and all
    live state in Redis. Errors: ConfigError names an option that cannot be used.
    """
    retention = None
    if artifact_retention is not None:
        retention = Retention.model_validate(artifact_retention.model_dump())
    settings = make_settings(url, **options)
    return PenguiflowStateStore(settings, types=TYPES, artifact_retention=retention)


def _run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end in a loop of its own, from inside or outside of another."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=run, name="redis_state apart")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


__all__ = ["TYPES", "PenguiflowStateStore", "create_store"]
