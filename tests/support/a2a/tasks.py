"""What the tests of the A2A SDK's stores share: tasks, events, callers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.types.a2a_pb2 import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from redis_state import Settings
from redis_state.integrations.a2a import A2ABackend, A2AOptions, connect

needs_rules_of_1_2 = pytest.mark.skipif(
    version("a2a-sdk") < "1.2", reason="the SDK's own stores had other rules before 1.2"
)

SUBMITTED = TaskState.TASK_STATE_SUBMITTED
WORKING = TaskState.TASK_STATE_WORKING
WAITING = TaskState.TASK_STATE_INPUT_REQUIRED
COMPLETED = TaskState.TASK_STATE_COMPLETED
CANCELED = TaskState.TASK_STATE_CANCELED
FAILED = TaskState.TASK_STATE_FAILED


class Named(User):
    """Somebody with a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        """Whether there is a name."""
        return self._name != ""

    @property
    def user_name(self) -> str:
        """The name."""
        return self._name


def caller(name: str = "ann", *, tenant: str = "") -> ServerCallContext:
    """Make the context of somebody's call."""
    return ServerCallContext(user=Named(name), tenant=tenant)


def server_on(settings: Settings, *, url: str = "", **options: Any) -> A2ABackend:
    """Make one server's backend."""
    at = url or settings.url.get_secret_value()
    return connect(at, A2AOptions(**options), namespace=settings.namespace)


def task(
    task_id: str = "t",
    state: TaskState = WORKING,
    *,
    context: str = "c",
    ns: int | None = 1_000_000_000,
    text: str = "",
) -> Task:
    """Make a task."""
    made = Task(id=task_id, context_id=context, status=TaskStatus(state=state))
    if ns is not None:
        made.status.timestamp.FromNanoseconds(ns)
    if text:
        made.artifacts.append(Artifact(artifact_id="a", parts=[Part(text=text)]))
    return made


def stated(text: str, task_id: str = "t") -> Message:
    """Make a message of the agent."""
    parts = [Part(text=text)]
    return Message(message_id=text, role=Role.ROLE_AGENT, task_id=task_id, parts=parts)


def speaking(made: Task, text: str) -> Task:
    """Give a task's status a message of the agent."""
    made.status.message.CopyFrom(stated(text))
    return made


def piece(text: str, task_id: str = "t") -> TaskArtifactUpdateEvent:
    """Make an event that brings something."""
    artifact = Artifact(artifact_id=text, parts=[Part(text=text)])
    return TaskArtifactUpdateEvent(task_id=task_id, context_id="c", artifact=artifact)


def moved(state: TaskState, task_id: str = "t") -> TaskStatusUpdateEvent:
    """Make an event that tells a state."""
    return TaskStatusUpdateEvent(task_id=task_id, context_id="c", status=TaskStatus(state=state))
