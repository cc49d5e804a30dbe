"""The store as a type checker sees it through PenguiFlow's classes, which it takes and returns.

`RedisStateStore` is written with classes of the same names and fields; which ones it makes is set
when it is made. So nothing here exists when a program runs.
"""

# ruff: noqa: D102 - signatures alone: the docstrings are those of RedisStateStore
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.store import RedisStateStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from penguiflow.artifacts import ArtifactStore
    from penguiflow.planner import PlannerEvent, Trajectory
    from penguiflow.state import (
        RemoteBinding,
        StateUpdate,
        SteeringEvent,
        StoredEvent,
        TaskState,
    )

    from redis_state.stores.sessions.session_log import Entry, EntryPage

    class TypedStore(RedisStateStore):
        """RedisStateStore, with PenguiFlow's classes in its signatures."""

        async def save_event(self, event: StoredEvent) -> None: ...
        async def save_events(self, events: Iterable[StoredEvent]) -> None: ...
        async def load_history(self, trace_id: str | None) -> list[StoredEvent]: ...
        async def save_remote_binding(self, binding: RemoteBinding) -> None: ...
        async def list_remote_bindings(self, trace_id: str) -> list[RemoteBinding]: ...
        async def find_binding(
            self,
            *,
            router_session_id: str,
            agent_url: str,
            remote_skill: str,
            tenant_id: str | None = None,
            user_id: str | None = None,
        ) -> RemoteBinding | None: ...
        async def list_bindings(self, *, router_session_id: str) -> list[RemoteBinding]: ...
        async def save_task(self, state: TaskState) -> None: ...
        async def list_tasks(self, session_id: str) -> list[TaskState]: ...
        async def save_update(self, update: StateUpdate) -> None: ...
        async def list_updates(
            self,
            session_id: str,
            *,
            task_id: str | None = None,
            since_id: str | None = None,
            limit: int = 500,
        ) -> list[StateUpdate]: ...
        async def read_updates(
            self,
            session_id: str,
            *,
            after: str | None = None,
            limit: int = 500,
            task_id: str | None = None,
        ) -> EntryPage[StateUpdate]: ...
        def watch_updates(
            self,
            session_id: str,
            *,
            after: str | None = None,
            task_id: str | None = None,
            reconnect_timeout_s: float = 300.0,
        ) -> AsyncGenerator[Entry[StateUpdate], None]: ...
        async def save_steering(self, event: SteeringEvent) -> None: ...
        async def list_steering(
            self,
            session_id: str,
            *,
            task_id: str | None = None,
            since_id: str | None = None,
            limit: int = 500,
        ) -> list[SteeringEvent]: ...
        async def read_steering(
            self,
            session_id: str,
            *,
            after: str | None = None,
            limit: int = 500,
            task_id: str | None = None,
        ) -> EntryPage[SteeringEvent]: ...
        def watch_steering(
            self,
            session_id: str,
            *,
            after: str | None = None,
            task_id: str | None = None,
            reconnect_timeout_s: float = 300.0,
        ) -> AsyncGenerator[Entry[SteeringEvent], None]: ...
        async def save_trajectory(
            self, trace_id: str, session_id: str, trajectory: Trajectory
        ) -> None: ...
        async def get_trajectory(self, trace_id: str, session_id: str) -> Trajectory | None: ...
        async def save_planner_event(self, trace_id: str, event: PlannerEvent) -> None: ...
        async def list_planner_events(self, trace_id: str) -> list[PlannerEvent]: ...
        @property
        def artifact_store(self) -> ArtifactStore: ...

else:
    TypedStore = RedisStateStore

__all__ = ["TypedStore"]
