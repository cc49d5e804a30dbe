"""That a namespace has more than Redis keeps: in an archive, or in PostgreSQL with durable events.

Who writes there gives a sign. Who erases reads it, and learns of what it has no address of.
The archive's id in Redis (`archive/identity.py`) is no such sign: it is written when something is
archived, and a sign every minute, also while nothing ends or the archive is away.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Literal

from redis_state.errors import BackendError
from redis_state.scripts import raw, topic_text
from redis_state.stores.base import Base
from redis_state.timeouts import timeout
from redis_state.transport.clock import us_of

Elsewhere = Literal["archive", "durable_events"]

_LASTS_MS = 400 * 86_400_000
# Not at each write: one sign lasts far longer. A server that came back without it gets it again.
_EVERY_S = 60.0
_PATIENCE_S = 5.0


class ElsewhereSigns:
    """The signs of a namespace, and those that this process gives."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._key = base.keys.kept_elsewhere()
        self._given_at: dict[Elsewhere, float] = {}

    async def give(self, what: Elsewhere) -> None:
        """Give a sign, unless this one gave it a moment ago. Errors: BackendError."""
        given_at = self._given_at.get(what)
        if given_at is not None and monotonic() - given_at < _EVERY_S:
            return
        await self._base.scripts.add_member(self._key, member=what, ttl_ms=_LASTS_MS)
        self._given_at[what] = monotonic()

    async def try_to_give(self, what: Elsewhere) -> None:
        """Give a sign if the server takes it soon. The next call tries again."""
        with suppress(BackendError, TimeoutError):
            async with timeout(_PATIENCE_S):
                await self.give(what)

    async def all(self) -> set[str]:
        """Return what signs were given of, within 400 days."""
        commands = self._base.scripts.transport.commands
        now_us = us_of(await commands.time())
        found: list[bytes] = await commands.zrevrange_above(self._key, now_us)
        return {topic_text(each) or "" for each in found}

    async def withdraw(self, what: Elsewhere) -> None:
        """Take a sign away: nothing is kept there any more."""
        await self._base.scripts.zrem(self._key, raw(what))
