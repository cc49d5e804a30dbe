"""Models with as little in them as they need, and servers of a test's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.embedded.server import EmbeddedServer, start_embedded
from redis_state.errors import ConfigError
from redis_state.models import (
    PlannerEvent,
    RemoteBinding,
    StateUpdate,
    SteeringEvent,
    SteeringEventType,
    StoredEvent,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from tests.support.servers.choice import wheel_binary
from tests.support.servers.sets.nodes import ask_beside, keys_like

LONG_ID = "x" * 10_240
ODD_IDS = (
    "",
    " ",
    "a",
    "A",
    "a:b",
    "a:b:c",
    "{a}",
    "a}b",
    "*",
    "?[a-z]",
    "%",
    "%25",
    "%~",
    "a\x00b",
    "a\nb",
    "é",
    "e\u0301",
    "\U0001f600",
    "\ud83d",
    "session:updates",
    LONG_ID,
    LONG_ID + "y",
)

# Ids of sessions, flows, handlers and checkpoints that a host's user may choose.
HOST_IDS = (
    *("a b", "}{", "{s}", "{", "%", "a:b", "ü/\n:*", "\0", "a\0b", "\U0001f642", "e\u0301"),
    *("x" * 500, "\U0001f642" * 500),
)


class Opaque:
    """Something that JSON cannot hold and that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def strange() -> dict[Any, Any]:
    """Hold one of each that JSON cannot hold."""
    holder: dict[Any, Any] = {
        "nan": float("nan"),
        "infinity": float("inf"),
        "bytes": b"\xff\x00",
        "set": {3, 1, 2},
        "object": Opaque(),
        "surrogate": "\ud800",
        "nul": "a\x00b",
        "tuple": (1, 2),
        7: "a key that is not text",
        "large": 2**70,
    }
    holder["itself"] = holder
    return holder


STORED_STRANGE: dict[str, Any] = {
    "nan": "NaN",
    "infinity": "Infinity",
    "bytes": "/wA=",
    "set": [1, 2, 3],
    "object": "<Opaque>",
    "surrogate": "\ud800",
    "nul": "a\x00b",
    "tuple": [1, 2],
    "7": "a key that is not text",
    "large": 2**70,
    "itself": "<cycle>",
}


def event(
    ts: Any = 1.0, *, trace_id: Any = "trace", payload: Any = None, **more: Any
) -> StoredEvent:
    """Make an audit event."""
    fields: dict[str, Any] = {"kind": "node_start", "node_name": "node", "node_id": "n-1", **more}
    return StoredEvent(
        trace_id=trace_id, ts=ts, payload={} if payload is None else payload, **fields
    )


def update(update_id: str, content: Any = None, **more: Any) -> StateUpdate:
    """Make an update."""
    fields: dict[str, Any] = {
        "session_id": "session",
        "task_id": "task",
        "update_type": UpdateType.PROGRESS,
    }
    return StateUpdate(update_id=update_id, content=content, **{**fields, **more})


def steering(event_id: str, payload: Any = None, **more: Any) -> SteeringEvent:
    """Make a steering event."""
    fields: dict[str, Any] = {
        "session_id": "session",
        "task_id": "task",
        "event_type": SteeringEventType.USER_MESSAGE,
        "payload": {"text": "hello"} if payload is None else payload,
    }
    return SteeringEvent(event_id=event_id, **{**fields, **more})


def task(task_id: Any = "task", session_id: Any = "session", **more: Any) -> TaskState:
    """Make a task."""
    fields: dict[str, Any] = {
        "status": TaskStatus.PENDING,
        "task_type": TaskType.BACKGROUND,
        "priority": 0,
        "context_snapshot": TaskContextSnapshot(session_id="session", task_id="task"),
    }
    return TaskState(task_id=task_id, session_id=session_id, **{**fields, **more})


def binding(task_id: Any = "remote", **more: Any) -> RemoteBinding:
    """Make a binding."""
    fields: dict[str, Any] = {
        "trace_id": "trace",
        "context_id": "context",
        "agent_url": "http://agent",
    }
    return RemoteBinding(task_id=task_id, **{**fields, **more})


def planner_event(ts: Any = 1.0, **more: Any) -> PlannerEvent:
    """Make a planner event."""
    fields: dict[str, Any] = {"event_type": "step", "trajectory_step": 0}
    return PlannerEvent(ts=ts, **{**fields, **more})


def own_server(directory: Path | None = None) -> EmbeddedServer:
    """Start a server that no other test uses, of the kind that the suite runs on."""
    named = os.environ.get("REDIS_STATE_TEST_SERVER")
    try:
        return start_embedded(directory, binary=wheel_binary() if named == "embedded" else None)
    except ConfigError as error:
        pytest.skip(f"no server to start: {error}")


def shared(settings: Settings, **more: Any) -> dict[str, Any]:
    """Give what another process needs to open the test's namespace."""
    return {"url": settings.url.get_secret_value(), "namespace": settings.namespace, **more}


def changed(settings: Settings, **options: Any) -> RedisStateStore:
    """Make a store of the test's namespace with other settings."""
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return RedisStateStore(Settings(**{**values, **options}))


async def keys_of(store: RedisStateStore) -> list[str]:
    """Name every key in the store's namespace, but for the replies kept for repeated calls."""
    found = await keys_like(store.transport, f"{store.settings.namespace}:*")
    return [key.decode() for key in found if b"}:call:" not in key]


async def admin(store: RedisStateStore, *command: str | bytes | int) -> Any:
    """Send a command that the library itself never sends."""
    return await ask_beside(store.transport, *command)
