"""RedisStateStore: the state-store contract of agent hosts, on Redis or Valkey."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakKeyDictionary

from redis_state import limits
from redis_state.errors import BackendError, ConfigError, InvalidField
from redis_state.models import ArtifactRetentionConfig
from redis_state.models.erasure import ErasureReport
from redis_state.payloads.settings import make_payloads
from redis_state.primitives.record import Records
from redis_state.scripts import Fence, Scripts
from redis_state.serialization import codec
from redis_state.settings import Settings, make_settings
from redis_state.stores.artifacts import ArtifactStore
from redis_state.stores.base import Base, Unreadable
from redis_state.stores.contexts.groups import GroupStore
from redis_state.stores.contexts.session_context import ContextStore
from redis_state.stores.contract import StateStoreContract
from redis_state.stores.durable_events.opening import open_events
from redis_state.stores.health import Health, check_health
from redis_state.stores.hosts.host_types import HostTypes
from redis_state.stores.hosts.pauses import PauseStore
from redis_state.stores.hosts.snapshots import SnapshotStore
from redis_state.stores.memory.kv import KVStore
from redis_state.stores.memory.memory import MemoryStore
from redis_state.stores.sessions.session_log import Entry, EntryPage
from redis_state.stores.sessions.steering import SteeringStore
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.stores.sessions.transitions import Transitions
from redis_state.stores.sessions.updates import UpdateStore
from redis_state.stores.streams.streams import StreamStore
from redis_state.stores.traces.audit_events import GLOBAL_TRACE, EventStore
from redis_state.stores.traces.bindings import BindingStore
from redis_state.stores.traces.planner_events import PlannerEventStore
from redis_state.stores.traces.sharing import TraceStore
from redis_state.stores.traces.trajectories import TrajectoryStore
from redis_state.timeouts import timeout
from redis_state.transport.keys import Keys, token_digest
from redis_state.transport.transport import Transport

if TYPE_CHECKING:
    from redis_state.archive.reading.reader import ArchiveReader


class RedisStateStore(StateStoreContract):
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
        from redis_state.archive.reading.reader import ArchiveReader  # noqa: PLC0415 - above us

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
        Until their usual expiry the numbers of each log and of each task's lease stay. So an
        earlier cursor raises CursorGap, and the writes of a worker that still runs an earlier task
        are refused.

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
        leave_unset: bool = False,
    ) -> ErasureReport:
        """Erase a session in Redis, in the store of claims and in the archive of the settings.

        See `redis_state.erasure.Eraser.forget`, also for users. Unlike `clear_session` it finds
        everything, and so reads the names of all keys.
        """
        # By name: it is above the store, and needed by few processes.
        eraser: Any = import_module("redis_state.erasure").Eraser(self)
        async with eraser:
            report: ErasureReport = await eraser.forget(
                session_id, dry_run=dry_run, running=running, leave_unset=leave_unset
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
        async with timeout(limits.timeout("timeout_s", timeout_s)):
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
        more = True
        with suppress(TimeoutError):
            await self.drain(_CLOSE_S)
            more = False
        more |= await self.memory.dismiss(self, timeout_s=_SUMMARIES_S)
        with suppress(TimeoutError, BackendError):
            async with timeout(_CLOSE_S):
                more |= await self.pauses.save_unsaved()
                if more:
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
