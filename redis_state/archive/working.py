"""Which archivers work: each gives a sign every few seconds, so that others can wait for its end.

Nothing that is archived depends on a sign. Who lets go of what is not archived asks for them first.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from time import monotonic
from typing import Self

from redis_state.errors import BackendError
from redis_state.scripts import raw
from redis_state.store import RedisStateStore, process_name
from redis_state.stores.kept_elsewhere import ElsewhereSigns
from redis_state.timeouts import timeout
from redis_state.transport.clock import us_of

_EVERY_S = 15.0
_LASTS_MS = 90_000
_LEAVE_S = 2.0


class WorkingArchivers:
    """The archivers of a namespace, and the sign of this one."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._key = store.base.keys.archivers()
        # A process may have several archivers.
        self._name = f"{process_name()}:{secrets.token_hex(3)}"
        self._elsewhere = ElsewhereSigns(store.base)
        self._signed_at = -_EVERY_S

    async def sign(self) -> None:
        """Give a sign that this process archives, unless it gave one a moment ago.

        Another one, which lasts, says that the namespace has an archive.
        """
        if monotonic() - self._signed_at < _EVERY_S:
            return
        await self._elsewhere.give("archive")
        scripts = self._store.base.scripts
        await scripts.add_member(self._key, member=self._name, ttl_ms=_LASTS_MS)
        self._signed_at = monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Take the sign of this one away, if it gave one. Without a server it ends by itself."""
        if self._signed_at < 0:
            return
        with suppress(BackendError, TimeoutError):
            async with timeout(_LEAVE_S):
                await self._store.base.scripts.zrem(self._key, raw(self._name))

    async def names(self) -> list[str]:
        """Return the processes that have given a sign within a minute and a half."""
        commands = self._store.transport.commands
        now_us = us_of(await commands.time())
        found: list[bytes] = await commands.zrevrange_above(self._key, now_us)
        return sorted(each.decode(errors="replace") for each in found)
