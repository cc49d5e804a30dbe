"""The store with either set of classes: its own, and those of the published PenguiFlow."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from redis_state import RedisStateStore, Settings, models
from redis_state.settings import make_settings

KINDS = ("own", "penguiflow")


@dataclass(frozen=True)
class Host:
    """A store, the classes that it speaks, and short ways to make one of each."""

    kind: str
    store: Any
    types: Any

    def event(self, ts: Any = 1.0, payload: Any = None, **more: Any) -> Any:
        """Make an audit event."""
        fields: dict[str, Any] = {
            "trace_id": "trace",
            "kind": "node_start",
            "node_name": "node",
            "node_id": "n-1",
        }
        return self.types.StoredEvent(
            ts=ts, payload={} if payload is None else payload, **{**fields, **more}
        )

    def update(self, update_id: str, content: Any = None, **more: Any) -> Any:
        """Make an update."""
        fields: dict[str, Any] = {
            "session_id": "session",
            "task_id": "task",
            "update_type": self.types.UpdateType.PROGRESS,
        }
        return self.types.StateUpdate(update_id=update_id, content=content, **{**fields, **more})

    def steering(self, event_id: str, payload: Any = None, **more: Any) -> Any:
        """Make a steering event."""
        fields: dict[str, Any] = {
            "session_id": "session",
            "task_id": "task",
            "event_type": self.types.SteeringEventType.USER_MESSAGE,
        }
        return self.types.SteeringEvent(
            event_id=event_id, payload=payload or {"text": "hello"}, **{**fields, **more}
        )

    def task(self, task_id: str = "task", session_id: str = "session", **more: Any) -> Any:
        """Make a task."""
        types = self.types
        fields: dict[str, Any] = {
            "status": types.TaskStatus.PENDING,
            "task_type": types.TaskType.BACKGROUND,
            "priority": 0,
            "context_snapshot": types.TaskContextSnapshot(session_id=session_id, task_id=task_id),
        }
        return types.TaskState(task_id=task_id, session_id=session_id, **{**fields, **more})

    def binding(self, task_id: str = "remote", **more: Any) -> Any:
        """Make a binding."""
        fields: dict[str, Any] = {
            "trace_id": "trace",
            "context_id": "context",
            "agent_url": "http://agent",
            "router_session_id": "session",
            "remote_skill": "search",
        }
        return self.types.RemoteBinding(task_id=task_id, **{**fields, **more})

    def planner_event(self, ts: Any = 1.0, **more: Any) -> Any:
        """Make a planner event."""
        fields: dict[str, Any] = {"event_type": "step", "trajectory_step": 0}
        return self.types.PlannerEvent(ts=ts, **{**fields, **more})


@asynccontextmanager
async def open_host(kind: str, settings: Settings, **options: Any) -> AsyncGenerator[Host]:
    """Give the store with one set of classes; skip without the package that has them."""
    url, namespace = settings.url.get_secret_value(), settings.namespace
    made: Any
    if kind == "own":
        retention = options.pop("artifact_retention", None)
        limits = None if retention is None else models.ArtifactRetentionConfig(**retention)
        settings = make_settings(url, namespace=namespace, **options)
        made = RedisStateStore(settings, artifact_retention=limits)
        types: Any = models
    else:
        types = penguiflow_types()
        from redis_state.integrations.penguiflow import create_store  # noqa: PLC0415 - an extra

        if "artifact_retention" in options:
            limits = types.ArtifactRetentionConfig(**options.pop("artifact_retention"))
            options["artifact_retention"] = limits
        made = create_store(url=url, namespace=namespace, **options)
    try:
        yield Host(kind, made, types)
    finally:
        await made.aclose()


def penguiflow_types() -> Any:
    """Gather PenguiFlow's classes under the names of ours."""
    reason = "needs the published package"
    state: Any = pytest.importorskip("penguiflow.state", reason=reason)
    planner: Any = pytest.importorskip("penguiflow.planner", reason=reason)
    artifacts: Any = pytest.importorskip("penguiflow.artifacts", reason=reason)
    found: dict[str, Any] = {
        name: getattr(module, name)
        for name in models.__all__
        for module in (state, planner, artifacts)
        if hasattr(module, name)
    }
    return SimpleNamespace(**found)
