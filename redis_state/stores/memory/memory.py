"""Memory states: one document under any key."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from redis_state.models.version import Version
from redis_state.primitives.record import Stored
from redis_state.serialization import codec
from redis_state.serialization.fields import expected, mapping
from redis_state.serialization.rows import as_object
from redis_state.stores.base import Base
from redis_state.stores.memory.kv_entry import lifetime_ms

log: logging.Logger = logging.getLogger(__name__)


class MemoryUser(Protocol):
    """A memory that holds what is not in the store yet, and may be busy with it."""

    async def leave(self, store: Any, *, timeout_s: float) -> None:
        """Finish within a time, save, and use the store no more."""
        ...


class MemoryStore:
    """Save and load memory states. The last save wins."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._users: WeakKeyDictionary[MemoryUser, asyncio.AbstractEventLoop] = WeakKeyDictionary()

    def add_user(self, user: MemoryUser) -> None:
        """Register a memory: it leaves when the store is closed in the running loop."""
        self._users[user] = asyncio.get_running_loop()

    def drop_user(self, user: MemoryUser) -> None:
        """Forget a memory that has left."""
        self._users.pop(user, None)

    async def dismiss(self, store: Any, *, timeout_s: float) -> bool:
        """Make the memories of the running loop leave a store that is about to be closed.

        Return whether there were any.
        """
        loop = asyncio.get_running_loop()
        users = [user for user, own in list(self._users.items()) if own is loop]
        left = (user.leave(store, timeout_s=timeout_s) for user in users)
        for error in await asyncio.gather(*left, return_exceptions=True):
            if error is not None:
                log.warning("a memory is closed unsaved: %s", type(error).__name__)
        for user in users:
            self.drop_user(user)
        return bool(users)

    async def save(
        self, key: str, state: dict[str, Any], *, expected_version: int | None = None
    ) -> Version:
        """Save a state and return its version. Errors: VersionConflict if one was expected.

        ``expected_version`` is a version that was read or saved, compared with its write, or a
        plain number, which is compared alone.
        """
        checked = mapping("state", state)
        return await self._base.records.save(
            self._base.keys.memory(key),
            {"document": codec.encode(checked)},
            ttl_ms=lifetime_ms(key, checked, self._base.settings),
            expected=expected("expected_version", expected_version),
        )

    async def load(self, key: str) -> tuple[dict[str, Any], Version] | None:
        """Return the state and its version, or None. An empty state is a state."""
        flat = self._base.fetch(self._base.keys.memory(key))
        return await self._base.read_record(key, "memory", flat, _read)

    async def delete(self, key: str) -> bool:
        """Delete a state; return whether there was one."""
        return await self._base.records.delete(self._base.keys.memory(key))


def _read(record: Stored) -> tuple[dict[str, Any], Version]:
    return as_object(record.fields["document"]), record.version
