"""The contract that agent hosts call: each method passes its call to the store of its kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

from redis_state.models import (
    PlannerEvent,
    RemoteBinding,
    StateUpdate,
    SteeringEvent,
    StoredEvent,
    TaskState,
    Trajectory,
)
from redis_state.models.version import Version
from redis_state.stores.hosts.pauses import PauseStore
from redis_state.stores.memory.memory import MemoryStore
from redis_state.stores.sessions.session_log import Entry, EntryPage
from redis_state.stores.sessions.steering import SteeringStore
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.stores.sessions.updates import UpdateStore
from redis_state.stores.traces.audit_events import EventStore
from redis_state.stores.traces.bindings import BindingStore
from redis_state.stores.traces.planner_events import PlannerEventStore
from redis_state.stores.traces.trajectories import TrajectoryStore


class StateStoreContract:
    """The methods of a host's state store. `RedisStateStore` makes the stores that they call."""

    events: EventStore
    bindings: BindingStore
    pauses: PauseStore
    memory: MemoryStore
    tasks: TaskStore
    updates: UpdateStore
    steering: SteeringStore
    trajectories: TrajectoryStore
    planner_events: PlannerEventStore

    # Required: audit events and remote bindings

    async def save_event(self, event: StoredEvent) -> None:
        """Append an audit event, once per content."""
        await self.events.save(event)

    async def save_events(self, events: Iterable[StoredEvent]) -> None:
        """Append many audit events, each trace's in the order given.

        Atomic per 64 events of a trace: what else is saved meanwhile may come in between.
        Errors: InvalidField before anything is sent.
        """
        await self.events.save_all(events)

    async def load_history(self, trace_id: str | None) -> list[StoredEvent]:
        """Return a trace's events by time, then in the order saved.

        Those of no trace are read as ``__global__``, or None.
        """
        return await self.events.load(trace_id)

    async def save_remote_binding(self, binding: RemoteBinding) -> None:
        """Save a binding; one of the same trace, context and task is replaced."""
        await self.bindings.save(binding)

    async def list_remote_bindings(self, trace_id: str) -> list[RemoteBinding]:
        """Return a trace's bindings in the order of their first save."""
        return await self.bindings.list(trace_id)

    async def find_binding(
        self,
        *,
        router_session_id: str,
        agent_url: str,
        remote_skill: str,
        tenant_id: str | None = None,
        user_id: str | None = None,
    ) -> RemoteBinding | None:
        """Return the newest live binding of a conversation; every coordinate matches exactly.

        None for tenant or user matches only None. The newest is the one whose first save was last.
        """
        return await self.bindings.find(
            router_session_id,
            agent_url=agent_url,
            remote_skill=remote_skill,
            tenant_id=tenant_id,
            user_id=user_id,
        )

    async def list_bindings(self, *, router_session_id: str) -> list[RemoteBinding]:
        """Return the bindings that a session has used, terminal ones too, by first save."""
        return await self.bindings.list_session(router_session_id)

    async def mark_binding_terminal(
        self, *, trace_id: str, context_id: str | None, task_id: str
    ) -> None:
        """Mark a binding as terminal: it is listed but not found any more. Ignore unknown ones."""
        await self.bindings.retire(trace_id, context_id, task_id)

    # Planner pauses

    async def save_planner_state(self, token: str, payload: dict[str, Any]) -> None:
        """Keep a pause until it is loaded or `pause_ttl` has passed. Saving again restarts that
        time.

        Errors: TokenResolved if the token was loaded before and the payload is another one.
        """
        await self.pauses.save(token, payload)

    async def load_planner_state(
        self, token: str, *, idempotency_key: str | None = None
    ) -> dict[str, Any] | None:
        """Consume a pause: return its payload to exactly one caller anywhere, None to all others.

        The same ``idempotency_key`` repeated gets the same payload: name one if you may call again
        after a restart of your process. A call without a claim that is cancelled or ends in
        OutcomeUnknown leaves the pause to the next caller.
        """
        return await self.pauses.load(token, idempotency_key=idempotency_key)

    # Memory

    async def save_memory_state(
        self, key: str, state: dict[str, Any], *, expected_version: int | None = None
    ) -> None:
        """Save a memory state; the last save wins. Kept `memory_ttl` after it.

        Errors: VersionConflict if a version was expected (0: no state) and it is at another. The
        version that `load_memory` gave is compared with its write; a plain int, which a server
        gives again after a rollback, as the number alone.
        """
        await self.memory.save(key, state, expected_version=expected_version)

    async def load_memory(self, key: str) -> tuple[dict[str, Any], Version] | None:
        """Return a memory state and its version, for a save that expects it, or None."""
        return await self.memory.load(key)

    async def load_memory_state(self, key: str) -> dict[str, Any] | None:
        """Return a memory state as it was saved, or None. ``{}`` is a state."""
        found = await self.memory.load(key)
        return None if found is None else found[0]

    # Tasks and their updates

    async def save_task(self, state: TaskState) -> None:
        """Save a task whole. The last save wins, but no older view brings an ended task back."""
        await self.tasks.save(state)

    async def list_tasks(self, session_id: str) -> list[TaskState]:
        """Return a session's tasks in the order of their first save, as fresh copies."""
        return await self.tasks.list(session_id)

    async def save_update(self, update: StateUpdate) -> None:
        """Append an update, once per ``update_id``, and publish it to the watchers."""
        await self.updates.save(update)

    async def list_updates(
        self,
        session_id: str,
        *,
        task_id: str | None = None,
        since_id: str | None = None,
        limit: int = 500,
    ) -> list[StateUpdate]:
        """Return the newest ``limit`` updates after ``since_id`` and of a task, oldest first.

        ``since_id`` is searched in the whole session. An unknown one is no cursor. To page forward
        without skipping, use `read_updates`.
        """
        return await self.updates.list(session_id, task_id=task_id, since_id=since_id, limit=limit)

    async def read_updates(
        self,
        session_id: str,
        *,
        after: str | None = None,
        limit: int = 500,
        task_id: str | None = None,
    ) -> EntryPage[StateUpdate]:
        """Return up to ``limit`` updates after a cursor, fewer if they have 1 MB, oldest first, and
        the cursor after them.

        None begins with the oldest kept. Errors: CursorGap if rows after the cursor are missing, or
        the cursor belongs to another session; its ``resume_after`` reads what is left.
        """
        return await self.updates.page(session_id, after=after, limit=limit, task_id=task_id)

    def watch_updates(
        self,
        session_id: str,
        *,
        after: str | None = None,
        task_id: str | None = None,
        reconnect_timeout_s: float = 300.0,
    ) -> AsyncGenerator[Entry[StateUpdate], None]:
        """Yield every update after a cursor once, in order, and then those to come.

        Survive lost connections and server restarts. Errors: CursorGap instead of a silent skip;
        BackendUnavailable if the server is unreachable for ``reconnect_timeout_s``, or at once if
        waiting cannot help.
        """
        return self.updates.watch(
            session_id, after=after, task_id=task_id, reconnect_timeout_s=reconnect_timeout_s
        )

    async def update_cursor(self, session_id: str, update_id: str | None = None) -> str | None:
        """Return the cursor after an update, None if it is not kept; without an id, the last."""
        return await self.updates.cursor(session_id, update_id)

    # Steering

    async def save_steering(self, event: SteeringEvent) -> None:
        """Append a steering event, sanitised, once per ``event_id`` and task, and publish it.

        Payloads are limited, not validated: `validate_steering_event` does that at the edge.
        """
        await self.steering.save(event)

    async def list_steering(
        self,
        session_id: str,
        *,
        task_id: str | None = None,
        since_id: str | None = None,
        limit: int = 500,
    ) -> list[SteeringEvent]:
        """Return the newest ``limit`` events after ``since_id`` and of a task, oldest first."""
        return await self.steering.list(session_id, task_id=task_id, since_id=since_id, limit=limit)

    async def read_steering(
        self,
        session_id: str,
        *,
        after: str | None = None,
        limit: int = 500,
        task_id: str | None = None,
    ) -> EntryPage[SteeringEvent]:
        """Return up to ``limit`` events after a cursor, oldest first. Like `read_updates`."""
        return await self.steering.page(session_id, after=after, limit=limit, task_id=task_id)

    def watch_steering(
        self,
        session_id: str,
        *,
        after: str | None = None,
        task_id: str | None = None,
        reconnect_timeout_s: float = 300.0,
    ) -> AsyncGenerator[Entry[SteeringEvent], None]:
        """Yield every event after a cursor once, in order, then live. Like `watch_updates`."""
        return self.steering.watch(
            session_id, after=after, task_id=task_id, reconnect_timeout_s=reconnect_timeout_s
        )

    async def steering_cursor(self, session_id: str, event_id: str | None = None) -> str | None:
        """Return the cursor after an event, None if it is not kept; without an id, the last."""
        return await self.steering.cursor(session_id, event_id)

    # Trajectories and planner events

    async def save_trajectory(self, trace_id: str, session_id: str, trajectory: Trajectory) -> None:
        """Save a trajectory and make its trace the session's newest."""
        await self.trajectories.save(trace_id, session_id, trajectory)

    async def get_trajectory(self, trace_id: str, session_id: str) -> Trajectory | None:
        """Return a trajectory, or None if this session has none of this trace."""
        return await self.trajectories.load(trace_id, session_id)

    async def list_traces(self, session_id: str, limit: int = 50) -> list[str]:
        """Return a session's traces, the last saved first."""
        return await self.trajectories.living(session_id, limit=limit)

    async def save_planner_event(self, trace_id: str, event: PlannerEvent) -> None:
        """Append a planner event. Equal events are all kept."""
        await self.planner_events.save(trace_id, event)

    async def list_planner_events(self, trace_id: str) -> list[PlannerEvent]:
        """Return a trace's planner events in the order they were saved."""
        return await self.planner_events.list(trace_id)
