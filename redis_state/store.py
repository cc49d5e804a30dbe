"""RedisStateStore: the state-store contract of agent hosts, on Redis or Valkey."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakKeyDictionary

from redis_state import limits
from redis_state.errors import BackendError, ConfigError, InvalidField
from redis_state.models import (
    ArtifactRef,
    ArtifactRetentionConfig,
    PlannerEvent,
    RemoteBinding,
    StateUpdate,
    SteeringEvent,
    StoredEvent,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    Trajectory,
)
from redis_state.models.erasure import ErasureReport
from redis_state.models.task_groups import TaskGroup
from redis_state.models.version import Version
from redis_state.payloads.settings import make_payloads
from redis_state.primitives.record import Records
from redis_state.scripts import Fence, Scripts
from redis_state.serialization import codec
from redis_state.settings import Settings, make_settings
from redis_state.stores.artifacts import ArtifactStore
from redis_state.stores.base import Base, Unreadable
from redis_state.stores.contexts.groups import GroupStore
from redis_state.stores.contexts.session_context import ContextStore, ContextTypes
from redis_state.stores.durable_events.opening import open_events
from redis_state.stores.health import Health, check_health
from redis_state.stores.memory.kv import KVStore
from redis_state.stores.memory.memory import MemoryStore
from redis_state.stores.pauses import PauseStore
from redis_state.stores.sessions.session_log import Entry, EntryPage
from redis_state.stores.sessions.steering import SteeringStore
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.stores.sessions.transitions import Transitions
from redis_state.stores.sessions.updates import UpdateStore
from redis_state.stores.snapshots import SnapshotStore
from redis_state.stores.streams.streams import StreamStore
from redis_state.stores.traces.audit_events import GLOBAL_TRACE, EventStore
from redis_state.stores.traces.bindings import BindingStore
from redis_state.stores.traces.planner_events import PlannerEventStore
from redis_state.stores.traces.sharing import TraceStore
from redis_state.stores.traces.trajectories import TrajectoryStore
from redis_state.transport.keys import Keys, token_digest
from redis_state.transport.transport import Transport

if TYPE_CHECKING:
    from redis_state.archive.reader import ArchiveReader


@dataclass(frozen=True, slots=True)
class HostTypes:
    """The classes a host wants back. Same names and fields as ours; ours by default."""

    stored_event: type[Any] = StoredEvent
    remote_binding: type[Any] = RemoteBinding
    task_state: type[Any] = TaskState
    task_context_snapshot: type[Any] = TaskContextSnapshot
    task_status: type[Any] = TaskStatus
    task_type: type[Any] = TaskType
    state_update: type[Any] = StateUpdate
    steering_event: type[Any] = SteeringEvent
    planner_event: type[Any] = PlannerEvent
    trajectory: type[Any] = Trajectory
    artifact_ref: type[Any] = ArtifactRef
    context: ContextTypes = field(default_factory=ContextTypes)
    task_group: type[Any] = TaskGroup


class RedisStateStore:
    """Everything an agent host persists, shared by all its processes.

    Making a store does no I/O; the first call connects. One store serves any number of callers
    and event loops. Calls of one loop take effect in the order they are made, awaited or not.

    Every call is atomic. One that raises BackendUnavailable did not happen; all writes carry an
    id, so a call whose reply was lost is repeated without doubling its effect, until its deadline
    makes it OutcomeUnknown. A save that was begun is carried out even if its caller is cancelled
    meanwhile. Reads give ``None`` or ``[]`` for what is not there.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        types: HostTypes | None = None,
        artifact_retention: ArtifactRetentionConfig | None = None,
    ) -> None:
        self.settings: Settings = settings or Settings()
        types = types or HostTypes()
        self.transport: Transport = Transport(self.settings)
        scripts = Scripts(self.transport)
        try:
            database = int(self.transport.address.options.get("db", 0))
            keys = Keys(self.settings.namespace, database)
        except InvalidField as error:
            raise ConfigError(str(error)) from None
        self.base: Base = Base(
            self.settings,
            keys,
            scripts,
            Records(scripts),
            make_payloads(self.settings),
        )
        self.events: EventStore = open_events(self.base, types.stored_event)
        self.bindings: BindingStore = BindingStore(self.base, types.remote_binding)
        self.pauses: PauseStore = PauseStore(self.base, consumer=process_name())
        self.memory: MemoryStore = MemoryStore(self.base)
        self.tasks: TaskStore = TaskStore(
            self.base,
            types.task_state,
            types.task_context_snapshot,
            types.task_status,
            types.task_type,
        )
        self.updates: UpdateStore = UpdateStore(self.base, types.state_update)
        self.steering: SteeringStore = SteeringStore(self.base, types.steering_event)
        self.trajectories: TrajectoryStore = TrajectoryStore(self.base, types.trajectory)
        self.planner_events: PlannerEventStore = PlannerEventStore(self.base, types.planner_event)
        self.traces: TraceStore = TraceStore(
            self.base, self.bindings, self.trajectories, self.events
        )
        self.snapshots: SnapshotStore = SnapshotStore(self.base)
        self.transitions: Transitions = Transitions(self.base, self.tasks, self.updates)
        self._artifacts = ArtifactStore(self.base, artifact_retention, ref_type=types.artifact_ref)
        self.contexts: ContextStore = ContextStore(
            self.base, self.updates, types=types.context, decider=process_name()
        )
        self.groups: GroupStore = GroupStore(self.base, group_type=types.task_group)
        self.streams: StreamStore = StreamStore(self.base)
        self.kv: KVStore = KVStore(self.base, self.memory, self._artifacts)
        self._archives: WeakKeyDictionary[asyncio.AbstractEventLoop, ArchiveReader] = (
            WeakKeyDictionary()
        )

    @classmethod
    def from_url(cls, url: str | None = None, **options: Any) -> Self:
        """Make a store for a server URL, else for ``REDIS_STATE_URL``.

        Options are the fields of `Settings`. Errors: ConfigError names an option that cannot be
        used. No I/O.
        """
        return cls(make_settings(url, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<RedisStateStore {self.transport.address} namespace={self.settings.namespace}>"

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
        """Return up to ``limit`` updates after a cursor, oldest first, and the cursor after them.

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
        BackendUnavailable if the server is unreachable for ``reconnect_timeout_s``.
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
        return await self.trajectories.traces(session_id, limit=limit)

    async def save_planner_event(self, trace_id: str, event: PlannerEvent) -> None:
        """Append a planner event. Equal events are all kept."""
        await self.planner_events.save(trace_id, event)

    async def list_planner_events(self, trace_id: str) -> list[PlannerEvent]:
        """Return a trace's planner events in the order they were saved."""
        return await self.planner_events.list(trace_id)

    # Artifacts

    @property
    def artifact_store(self) -> ArtifactStore:
        """The artifacts: bytes that tools produce, kept beside a session within its limits."""
        return self._artifacts

    @property
    def archive(self) -> ArchiveReader:
        """What has ended, from Redis or the archive of `archive_url`: with the same models, and
        cursors that go from one to the other.

        It belongs to the running loop, connects at its first call, and is closed with the store.
        Errors: ConfigError without `archive_url`, and those of `open_archive`.
        """
        from redis_state.archive.reader import ArchiveReader  # noqa: PLC0415 - it reads stores

        loop = asyncio.get_running_loop()
        reader = self._archives.get(loop)
        if reader is None:
            reader = self._archives[loop] = ArchiveReader(self)
        return reader

    # Housekeeping

    async def clear_session(self, session_id: str) -> None:
        """Delete what is kept of a session.

        These are its tasks, groups, context, patches, updates, steering, trajectories, artifacts,
        the bindings of its conversations and quarantined rows. The events, planner events and
        bindings of its traces are deleted too. A trace belongs to each session that saved a
        trajectory of it, or a binding in it. It stays while another session uses it.

        Memory with its key-value entries, pauses and snapshots stay: they are not kept by session.
        Until their usual expiry, decisions on patches stay, and the numbers of each log and of each
        task's lease. So an earlier cursor raises CursorGap, and the writes of a worker that still
        runs an earlier task are refused.

        Not atomic. Repeat it if it was interrupted.
        """
        # Leases first: a worker's update that comes after the rows are gone would stay.
        for task_id in await self.tasks.ids(session_id):
            await self.tasks.clear(session_id, task_id)
        await self.tasks.clear_lines(session_id)
        await self.contexts.clear(session_id)
        await self.groups.clear(session_id)
        await self.updates.clear(session_id)
        await self.steering.clear(session_id)
        await self._artifacts.clear(session_id)
        await self.traces.clear(session_id)
        await self.base.drop_unreadable(session_id)

    async def forget(
        self,
        session_id: str,
        *,
        dry_run: bool = False,
        running: Literal["refuse", "fence"] = "refuse",
    ) -> ErasureReport:
        """Erase a session in Redis, in the store of claims and in the archive of the settings.

        See `redis_state.erasure.Eraser.forget`, also for users. Unlike `clear_session` it finds
        everything, and so reads the names of all keys.
        """
        # By name: it is above the store, and needed by few processes.
        eraser: Any = import_module("redis_state.erasure").Eraser(self)
        async with eraser:
            report: ErasureReport = await eraser.forget(
                session_id, dry_run=dry_run, running=running
            )
            return report

    async def delete_everything(self) -> None:
        """Delete every key under this store's namespace. Scan the whole server.

        Concurrent writes may be deleted too: call it for a namespace without users.
        """
        pattern, commands = f"{self.settings.namespace}:v1:*", self.transport.commands
        for server in await self.transport.each_primary():
            async for found in server.scan_all(pattern):
                await asyncio.gather(*(commands.unlink(key) for key in found))
        # What waits for it in Redis would come after.
        await self.events.forget_all()

    async def unreadable(
        self,
        *,
        session_id: str | None = None,
        trace_id: str | None = None,
        memory_key: str | None = None,
        token: str | None = None,
    ) -> list[Unreadable]:
        """List the quarantined rows of a session, a trace, a memory key or a pause, with the
        reasons.

        Each row is kept for 7 days, 100 per scope at most. Give one of the scopes. Without one,
        global events are listed.
        """
        if token is not None:
            return await self.base.unreadable(token_digest(token))
        named = (scope for scope in (session_id, trace_id, memory_key) if scope is not None)
        return await self.base.unreadable(next(named, GLOBAL_TRACE))

    def changes_of(self, value: Any) -> list[codec.Change]:
        """Return what storing a value would change in it: each place, and the kind of value."""
        return codec.encode_reporting(value)[1]

    async def health(self) -> Health:
        """Report the state of the server. Does not raise if the server is unreachable."""
        return await check_health(self.base, self.transport)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Wait until every call made so far in this loop has its outcome. Errors: TimeoutError.

        Also for calls that are not begun yet, and for those that a task in the background makes
        one right after the other.
        """
        async with asyncio.timeout(limits.timeout("timeout_s", timeout_s)):
            quiet = 0
            while quiet < _QUIET_TURNS:
                if self.transport.sender.pending or self.base.unsettled() or self.events.pending():
                    quiet = 0
                    await self.events.settle()
                    await self.base.settle()
                    await self.transport.drain()
                else:
                    quiet += 1
                    await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Finish what was called, disconnect, stop an embedded server of our own. Safe to repeat.

        Calls that have no outcome after 5 s are given up. Memories that used the store summarise
        what waits, for 10 s at most, and save. Pauses that could not be saved are tried again.
        Only the running loop's: another loop's are finished by closing there too.
        """
        with suppress(TimeoutError):
            await self.drain(_CLOSE_S)
        await self.memory.dismiss(self, timeout_s=_SUMMARIES_S)
        with suppress(TimeoutError, BackendError):
            async with asyncio.timeout(_CLOSE_S):
                await self.pauses.save_unsaved()
                await self.drain()
        reader = self._archives.pop(asyncio.get_running_loop(), None)
        if reader is not None:
            await reader.aclose()
        await self.events.aclose()
        await self.transport.aclose(drain_s=0)


_CLOSE_S = 5.0
_SUMMARIES_S = 10.0
# Between two calls of one task the loop may turn so often: tasks of tasks, shields, deadlines.
_QUIET_TURNS = 20


def process_name() -> str:
    """Return a name for this process, for people to read."""
    return f"{socket.gethostname()}:{os.getpid()}"


__all__ = [
    "Entry",
    "EntryPage",
    "Fence",
    "Health",
    "HostTypes",
    "RedisStateStore",
    "Unreadable",
    "process_name",
]
