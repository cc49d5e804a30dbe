"""The lease: one owner at a time, under an epoch that only grows.

A process that stalls past its lease cannot know that it lost it. So the epoch and the owner's
random id go with every write, and the script that writes compares both. The epoch is at least the
server's time in ms: also a server whose history went back gives a later owner a greater one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis_state.errors import BackendError, LeaseLost
from redis_state.scripts import Fence, ReplyCode, Scripts

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that was taken: by which claim, under which epoch."""

    key: str
    owner: str
    epoch: int

    @property
    def fence(self) -> Fence:
        """What a write carries to be refused once a later owner has come."""
        return Fence(self.key, self.epoch, self.owner)


class Leases:
    """Take, renew and give back leases.

    ``keep_ms`` is how long an epoch is remembered after its lease has run out. A later claim's is
    greater all the same, unless the server's clock was set back meanwhile.
    """

    def __init__(self, scripts: Scripts, *, keep_ms: int) -> None:
        self._scripts = scripts
        self._keep_ms = keep_ms

    async def acquire(
        self, key: str, *, duration_ms: int, owner: str | None = None
    ) -> HeldLease | None:
        """Take the lease under the next epoch, or return None while another owner holds it.

        The same ``owner`` repeated gets the epoch it has. Make one up for each claim, not for each
        process: two claims of one process are two owners.
        """
        owner = owner or new_owner()
        reply = await self._scripts.acquire_lease(
            key, owner=owner, duration_ms=duration_ms, keep_ms=self._keep_ms
        )
        return None if reply.word is ReplyCode.HELD else HeldLease(key, owner, int(reply.facts[0]))

    async def renew(self, held: HeldLease, *, duration_ms: int) -> None:
        """Hold it for so long from now, also if it has run out but nobody took it.

        Errors: LeaseLost once it was taken over or given back.
        """
        reply = await self._scripts.renew_lease(
            held.key,
            owner=held.owner,
            epoch=held.epoch,
            duration_ms=duration_ms,
            keep_ms=self._keep_ms,
        )
        if reply.word is ReplyCode.LOST:
            current, taken = map(int, reply.facts)
            raise LeaseLost(held.key, epoch=held.epoch, current=current, released=not taken)

    async def is_held(self, key: str) -> bool:
        """Return whether the lease is held."""
        reply = await self._scripts.look_lease(key)
        return int(reply.facts[0]) > 0

    async def release(self, held: HeldLease) -> None:
        """Give it back. Does nothing if it is no longer held."""
        await self._scripts.release_lease(held.key, owner=held.owner, epoch=held.epoch)

    async def keep(
        self, held: HeldLease, *, duration_ms: int, limit_s: float | None = None
    ) -> LeaseLost | None:
        """Renew the lease each third of its time until it is lost; return how.

        After ``limit_s`` it is renewed no more, and None is returned: then it runs out. A server
        that cannot be reached, or is full, is tried again soon.
        """
        now = asyncio.get_running_loop().time
        begun = now()
        pause_s = duration_ms / 3000
        while True:
            await asyncio.sleep(pause_s)
            if limit_s is not None and now() - begun > limit_s:
                log.warning("a lease is not renewed any more: %g s are over", limit_s)
                return None
            pause_s = duration_ms / 3000
            try:
                await self.renew(held, duration_ms=duration_ms)
            except LeaseLost as error:
                return error
            except BackendError as error:
                log.warning("a lease could not be renewed: %s", error)
                pause_s = duration_ms / 30_000

    @asynccontextmanager
    async def keeping(
        self,
        held: HeldLease,
        *,
        duration_ms: int,
        on_lost: Callable[[LeaseLost], None],
        limit_s: float | None = None,
    ) -> AsyncGenerator[None, None]:
        """Renew the lease, see `keep`, for the length of the block.

        ``on_lost`` is called once, in this loop, when it was taken over.
        """

        async def beat() -> None:
            lost = await self.keep(held, duration_ms=duration_ms, limit_s=limit_s)
            if lost is not None:
                on_lost(lost)

        heart = asyncio.create_task(beat(), name="redis_state lease")
        try:
            yield
        finally:
            heart.cancel()
            await asyncio.wait({heart})


def new_owner() -> str:
    """Return a new id for one claim."""
    return secrets.token_urlsafe(12)
