"""What a state store can do, as protocols: the core is required, the rest is detected.

Each protocol is runtime-checkable: ``isinstance`` looks at the names of the methods only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from redis_state.errors import MissingCapability
from redis_state.models.steering import SteeringEvent
from redis_state.models.tasks import StateUpdate, TaskState
from redis_state.models.traces.events import RemoteBinding, StoredEvent
from redis_state.models.traces.planner import PlannerEvent, Trajectory


@runtime_checkable
class StateStore(Protocol):
    """The core: the audit log of a trace and its remote bindings."""

    async def save_event(self, event: StoredEvent) -> None:
        """Append to the trace's log; the same event again changes nothing."""
        ...

    async def load_history(self, trace_id: str) -> Sequence[StoredEvent]:
        """Return the trace's events by time; empty for an unknown trace."""
        ...

    async def save_remote_binding(self, binding: RemoteBinding) -> None:
        """Insert or replace the binding."""
        ...


@runtime_checkable
class SupportsPlannerState(Protocol):
    """Pauses of a planner, each under a token that works once."""

    async def save_planner_state(self, token: str, payload: dict[str, Any]) -> None:
        """Store the pause under its token."""
        ...

    async def load_planner_state(self, token: str) -> dict[str, Any] | None:
        """Take the pause: the token is spent. ``None`` if it is unknown, spent or expired."""
        ...


@runtime_checkable
class SupportsConversationBindings(Protocol):
    """Finding the remote task that a router session's next turn belongs to."""

    async def find_binding(
        self,
        *,
        router_session_id: str,
        agent_url: str,
        remote_skill: str,
        tenant_id: str | None = None,
        user_id: str | None = None,
    ) -> RemoteBinding | None:
        """Return the newest live binding of exactly these coordinates; ``None`` is no wildcard."""
        ...

    async def list_bindings(self, *, router_session_id: str) -> Sequence[RemoteBinding]:
        """Return all bindings of the session, terminal ones too, in storage order."""
        ...

    async def mark_binding_terminal(
        self, *, trace_id: str, context_id: str | None, task_id: str
    ) -> None:
        """Retire the binding; an unknown one is ignored."""
        ...


@runtime_checkable
class SupportsMemoryState(Protocol):
    """One document per key: memory and session values."""

    async def save_memory_state(self, key: str, state: dict[str, Any]) -> None:
        """Store the document, replacing the previous one."""
        ...

    async def load_memory_state(self, key: str) -> dict[str, Any] | None:
        """Return the document, ``None`` if there is none."""
        ...


@runtime_checkable
class SupportsTasks(Protocol):
    """Tasks of a session and their updates."""

    async def save_task(self, state: TaskState) -> None:
        """Insert or replace the task."""
        ...

    async def list_tasks(self, session_id: str) -> Sequence[TaskState]:
        """Return the session's tasks in the order of their first save."""
        ...

    async def save_update(self, update: StateUpdate) -> None:
        """Append to the session's updates; the same id again changes nothing."""
        ...

    async def list_updates(
        self,
        session_id: str,
        *,
        task_id: str | None = None,
        since_id: str | None = None,
        limit: int = 500,
    ) -> Sequence[StateUpdate]:
        """Return the newest ``limit`` updates after ``since_id``, oldest first."""
        ...


@runtime_checkable
class SupportsSteering(Protocol):
    """Steering events of a session, stored sanitised."""

    async def save_steering(self, event: SteeringEvent) -> None:
        """Append to the session's steering; the same id again changes nothing."""
        ...

    async def list_steering(
        self,
        session_id: str,
        *,
        task_id: str | None = None,
        since_id: str | None = None,
        limit: int = 500,
    ) -> Sequence[SteeringEvent]:
        """Return the newest ``limit`` events after ``since_id``, oldest first."""
        ...


@runtime_checkable
class SupportsTrajectories(Protocol):
    """Trajectories of planner runs."""

    async def save_trajectory(self, trace_id: str, session_id: str, trajectory: Trajectory) -> None:
        """Insert or replace the trajectory and move its trace to the front."""
        ...

    async def get_trajectory(self, trace_id: str, session_id: str) -> Trajectory | None:
        """Return the trajectory, ``None`` if there is none."""
        ...

    async def list_traces(self, session_id: str, limit: int = 50) -> list[str]:
        """Return the session's traces, newest first."""
        ...


@runtime_checkable
class SupportsPlannerEvents(Protocol):
    """Events of planner runs, for replay."""

    async def save_planner_event(self, trace_id: str, event: PlannerEvent) -> None:
        """Append to the trace's planner events; equal events are all kept."""
        ...

    async def list_planner_events(self, trace_id: str) -> list[PlannerEvent]:
        """Return the trace's planner events in the order they were saved."""
        ...


@runtime_checkable
class SupportsArtifacts(Protocol):
    """A store for binary results beside the state."""

    @property
    def artifact_store(self) -> Any:
        """The artifact store, or ``None``."""
        ...


def missing_capabilities(store: object, methods: Sequence[str]) -> list[str]:
    """Return those of ``methods`` that the store lacks."""
    return [method for method in methods if not hasattr(store, method)]


def require_capabilities(store: object, *, feature: str, methods: Sequence[str]) -> None:
    """Raise ``MissingCapability`` unless the store has all of ``methods``."""
    missing = missing_capabilities(store, methods)
    if missing:
        raise MissingCapability(feature, missing)
