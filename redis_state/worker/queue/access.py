"""The server of the queues, their keys and scripts, and whether it has lost their history."""

from __future__ import annotations

from redis_state import limits
from redis_state.primitives.record import new_write_id
from redis_state.scripts import Scripts
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.transport.key_groups import QueueKeys
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport
from redis_state.worker.queue.names import QueueNames
from redis_state.worker.queue.server import check_shared, queue_server

DEFAULT_QUEUE = "tasks"

_REMEMBERED = 64


class QueueAccess:
    """What a client and a worker need of the queues of a namespace."""

    def __init__(self, store: RedisStateStore, *, name: str | None = None) -> None:
        check_shared(store.settings)
        self.name: str = limits.name_or("queue", name, DEFAULT_QUEUE)
        self._store = store
        self._life_ms = ms(store.settings.active_task_ttl)
        elsewhere = queue_server(store.settings)
        self._own = None if elsewhere is None else Transport(elsewhere)
        self._scripts = store.base.scripts if self._own is None else Scripts(self._own)
        database = int(self.transport.address.options.get("db") or 0)
        self._keys = Keys(store.settings.namespace, database)
        self._jobs_tag = self._keys.jobs_tag
        self._known: dict[str, QueueKeys] = {}
        self.names: QueueNames = QueueNames(
            self._scripts, self._keys.queue_names(), life_ms=self._life_ms
        )
        self._history = ""

    @property
    def scripts(self) -> Scripts:
        """The scripts, run on the queue's server."""
        return self._scripts

    @property
    def rates_key(self) -> str:
        """The key of the namespace's rates."""
        return self._keys.rates()

    @property
    def rate_settings(self) -> str:
        """The key of the rates that were set in place of the handlers' own."""
        return self._keys.rate_settings()

    @property
    def transport(self) -> Transport:
        """The way to the queue's server."""
        return self._scripts.transport

    def keys(self, queue: str | None = None) -> QueueKeys:
        """Return the keys of a queue."""
        name = queue or self.name
        known = self._known.get(name)
        if known is None:
            known = self._keys.queue(name)
            # Names are the user's: a process has few.
            if len(self._known) < _REMEMBERED:
                self._known[name] = known
        return known

    async def history(self, *, picking: bool = False) -> tuple[str, bool]:
        """Return what distinguishes the history of the queues from one that was lost, "" if their
        server does not say; and whether arq's own runner picked jobs within a day.

        ``picking`` if it does now. Errors: BackendUnavailable.
        """
        reply = await self._scripts.know_history(
            self._keys.queue_history(), id=new_write_id(), picking=picking
        )
        history = reply.text(0)
        if history != self._history:
            # What this process has written may be lost. Tasks that wait are ensured again.
            self.names.doubt()
            self._history = history
        return history, reply.facts[1] == 1

    async def aclose(self) -> None:
        """Disconnect this loop from a server of the queue's own. Safe to repeat."""
        if self._own is not None:
            await self._own.aclose()
