"""What the parts of one A2A server share: the connection, the limits, the name it goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self
from weakref import ReferenceType, WeakValueDictionary

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.types.a2a_pb2 import TaskStatusUpdateEvent

from redis_state import limits
from redis_state.errors import ConfigError
from redis_state.integrations.a2a.convert import failed, status_of, task_of
from redis_state.settings import Settings, make_settings
from redis_state.store import RedisStateStore
from redis_state.stores.a2a.ownership import A2AOwner
from redis_state.stores.a2a.page_tokens import PageTokens
from redis_state.stores.a2a.task_model import A2ALimits, Ref, VersionedTask
from redis_state.stores.a2a.tasks import A2ATasks
from redis_state.stores.base import ms
from redis_state.transport.keys import a2a_scope

# The SDK reads a task, as its caller, before it taps the task's queue, by its id alone.
_READ: ContextVar[Ref | None] = ContextVar("redis_state a2a task that was read", default=None)

OnOrphan = Callable[[str, Event], Awaitable[None]]
OnEnd = Callable[[str, TaskStatusUpdateEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class A2AOptions:
    """How an A2A server keeps its tasks.

    ``lease_s`` is how long a server may be silent before what it works on is ended as failed.
    ``on_orphan`` is then called with the task's id and the event; a push sender's
    ``send_notification`` fits. One server at a time calls it, at least once. It is called again if
    that server dies before it returns, or if it raises. ``event.status.message.message_id`` is the
    same each time: an idempotency key. Give it to all servers alike. ``max_events`` of a task can
    be read back. ``max_bytes`` limits a task and an event. ``tombstone`` is how long a deleted id
    stays refused.
    """

    owner_resolver: OwnerResolver = resolve_user_scope
    lease_s: float = 15.0
    max_bytes: int = 8 << 20
    max_events: int = 1000
    max_push_configs: int = 100
    tombstone: timedelta = timedelta(days=1)
    on_orphan: OnOrphan | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work. Errors: ConfigError names it."""
        with limits.options():
            limits.seconds("lease_s", self.lease_s, least=_SHORTEST_LEASE_S)
            for name in ("max_bytes", "max_events", "max_push_configs"):
                limits.count(name, getattr(self, name))
            limits.lifetime("tombstone", self.tombstone)


class A2ABackend:
    """One A2A server's tasks on Redis. Make one for each process, and close it at the end.

    Making it does no I/O. Once entered, or from the first call on, it renews the leases of the
    tasks that this server works on. It also ends the tasks of servers that have died.
    """

    def __init__(
        self,
        store: RedisStateStore,
        options: A2AOptions | None = None,
        *,
        owns_store: bool = False,
    ) -> None:
        self.store: RedisStateStore = store
        self.options: A2AOptions = options or A2AOptions()
        settings = store.settings
        limits = A2ALimits(
            active_ms=ms(settings.active_task_ttl),
            finished_ms=ms(settings.finished_task_ttl),
            max_bytes=self.options.max_bytes,
            max_events=self.options.max_events,
            max_configs=self.options.max_push_configs,
            tombstone_ms=ms(self.options.tombstone),
            lease_ms=int(self.options.lease_s * 1000),
        )
        self.tasks: A2ATasks = A2ATasks(store.base, limits)
        self.page_tokens: PageTokens = PageTokens(store.base)
        self._on_orphan: OnEnd | None = self.options.on_orphan
        report = self._report if self._on_orphan else None
        self.owner: A2AOwner = A2AOwner(self.tasks, failed, report)
        # By task id, which is all that the SDK's queues know: who is read here, and who is fed.
        self.tapped: Counter[str] = Counter()
        self.fed: set[str] = set()
        self.closed: bool = False
        self._owns_store = owns_store
        self._queues: ReferenceType[object] | None = None

    async def __aenter__(self) -> Self:
        self.owner.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def scope(self, context: ServerCallContext) -> str:
        """Return the caller's scope: tenant and owner. Nothing of another scope can be reached."""
        return a2a_scope(context.tenant, self.options.owner_resolver(context))

    def ref(self, task_id: str, context: ServerCallContext) -> Ref:
        """Return the reference of a caller's task."""
        return Ref(self.scope(context), task_id)

    async def read(self, ref: Ref) -> VersionedTask | None:
        """Read a task, see `A2AOwner.look`, and remember for this call which it was."""
        _READ.set(ref)
        return await self.owner.look(ref)

    def was_read(self, task_id: str) -> Ref | None:
        """Return the task of this id that the running call has read, if it has."""
        ref = _READ.get()
        return ref if ref is not None and ref.task_id == task_id else None

    def only_listens(self, task_id: str) -> bool:
        """Return whether a task's queue is fed by another server and read here."""
        return self.tapped[task_id] > 0 and task_id not in self.fed

    def feed_by(self, queues: object) -> None:
        """Take the one queue manager of this server. Errors: ConfigError for a second one.

        A server must know which queues it feeds itself, by the task's id alone.
        """
        known = self._queues() if self._queues is not None else None
        if known is not None and known is not queues:
            raise ConfigError(
                "this backend has a queue manager: a second server in one process needs a "
                "backend of its own, made with connect()"
            )
        self._queues = ReferenceType(queues)

    async def aclose(self) -> None:
        """End what is still worked on here as failed, and disconnect. Safe to repeat.

        Stop the request handler first, so that no agent runs any more.
        """
        self.closed = True
        await self.owner.aclose()
        if self._owns_store:
            await self.store.aclose()

    def push_by(self, send: OnEnd) -> None:
        """Make sure that each end is sent by this server or by another one, at least once."""
        self._on_orphan = self._on_orphan or send
        self.owner.ends.announce_here(self._report)

    async def _report(self, ref: Ref, body: bytes) -> None:
        if self._on_orphan is not None:
            await self._on_orphan(ref.task_id, status_of(task_of(body)))


def connect(
    at: A2ABackend | RedisStateStore | str | None = None,
    options: A2AOptions | None = None,
    **settings: Any,
) -> A2ABackend:
    """Make the backend of an A2A server, for a store, a server URL, or ``REDIS_STATE_URL``.

    Give it to each part of that server. A store is left open when the backend is closed.
    ``settings`` are the fields of `Settings`. Errors: ConfigError. No I/O.
    """
    if isinstance(at, A2ABackend):
        if options is not None or settings:
            raise ConfigError("a backend that is there takes no further options")
        return at
    if isinstance(at, RedisStateStore):
        if settings:
            raise ConfigError("a store that is there takes no further settings")
        return A2ABackend(at, options)
    return A2ABackend(RedisStateStore.from_url(at, **settings), options, owns_store=True)


def shared(
    at: A2ABackend | RedisStateStore | str | None, options: A2AOptions | None, **settings: Any
) -> A2ABackend:
    """Return the backend that the parts of one server share; arguments as of `connect`.

    Parts that are made in one process for the same store, or for the same server and settings,
    are of one server: they must know what the others do. Errors: ConfigError for options other
    than those that the backend was made with.
    """
    if isinstance(at, A2ABackend):
        return connect(at, options, **settings)
    key = at if isinstance(at, RedisStateStore) else make_settings(at, **settings)
    backend = _SHARED.get(key)
    if backend is None or backend.closed:
        backend = _SHARED[key] = connect(at, options, **settings)
    elif settings and isinstance(at, RedisStateStore):
        raise ConfigError("a store that is there takes no further settings")
    elif options is not None and options != backend.options:
        raise ConfigError(
            "the parts of one server share a backend, and it was made with other options: "
            "make it with connect() and give it to each"
        )
    return backend


_SHORTEST_LEASE_S = 0.1
_SHARED: WeakValueDictionary[RedisStateStore | Settings, A2ABackend] = WeakValueDictionary()
