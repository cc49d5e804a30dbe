"""The lease: one owner at a time, under an epoch that only grows.

A process that stalls past its lease cannot know that it lost it. So the epoch and the owner's
random id go with every write, and the script that writes compares both. The epoch is at least the
server's time in ms: also a server whose history went back gives a later owner a greater one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from redis_state.errors import BackendError, LeaseLost, RedisStateError
from redis_state.scripts import Fence, ReplyCode, Scripts
from redis_state.timers import SharedTimer, SharedTimers

log: logging.Logger = logging.getLogger(__name__)

# Of the moments at which a lease may be renewed.
_THIRD = 10


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
    greater all the same, unless the server's clock was set back meanwhile. None is for leases in
    the hash of a record, which decides itself how long it lives. ``loop`` names the event loop
    that renews, also that of another thread.
    """

    def __init__(
        self,
        scripts: Scripts,
        *,
        keep_ms: int | None,
        loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.get_running_loop,
    ) -> None:
        self.loop: Callable[[], asyncio.AbstractEventLoop] = loop
        self.timers: SharedTimers = SharedTimers()
        self._scripts = scripts
        self._keep_ms = keep_ms
        # A loop refers to its tasks weakly.
        self._undoing = set[asyncio.Task[None]]()

    async def acquire(
        self, key: str, *, duration_ms: int, owner: str | None = None
    ) -> HeldLease | None:
        """Take the lease under the next epoch, or return None while another owner holds it.

        See `take`.
        """
        found = await self.take(key, duration_ms=duration_ms, owner=owner)
        return found if isinstance(found, HeldLease) else None

    async def take(
        self, key: str, *, duration_ms: int, owner: str | None = None
    ) -> HeldLease | int:
        """Take the lease under the next epoch, or return for how many ms another owner holds it.

        The same ``owner`` repeated gets the epoch it has. Make one up for each claim, not for each
        process: two claims of one process are two owners. A caller that is cancelled meanwhile
        holds nothing.
        """
        owner = owner or new_owner()
        try:
            return await self._ask(key, owner, duration_ms)
        except asyncio.CancelledError:
            # The server may grant it all the same, and nobody would give it back.
            self.abandon(key, owner)
            raise

    def abandon(self, key: str, owner: str) -> None:
        """Begin to free what a claim may have taken. It runs out if the server is away."""
        undoing = asyncio.get_running_loop().create_task(
            self._undo(key, owner), name="redis_state lease"
        )
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)

    async def _undo(self, key: str, owner: str) -> None:
        """Hold it for a moment only: the same claim again, behind the one that took it."""
        with suppress(RedisStateError):
            await self._ask(key, owner, 1)

    async def _ask(self, key: str, owner: str, duration_ms: int) -> HeldLease | int:
        reply = await self._scripts.acquire_lease(
            key, owner=owner, duration_ms=duration_ms, keep_ms=self._keep_ms
        )
        fact = int(reply.facts[0])
        return fact if reply.word is ReplyCode.HELD else HeldLease(key, owner, fact)

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

    async def give_back(self, held: HeldLease) -> None:
        """Release it at the end of some work. If the server cannot be reached it runs out.

        So what came of the work is not replaced by an error of its last call.
        """
        try:
            await self.release(held)
        except BackendError as error:
            log.warning("a lease could not be given back, and runs out: %s", error)

    def keep(
        self,
        held: HeldLease,
        *,
        duration_ms: int,
        on_lost: Callable[[LeaseLost], object],
        wanted: Callable[[], bool] | None = None,
    ) -> Renewal:
        """Renew the lease from now on, until the renewal is stopped. Sends nothing.

        ``on_lost`` is called once, in this loop, if it is taken over. If ``wanted`` returns False
        when it is to be renewed, that ends the renewal too, and the lease runs out.
        """
        return Renewal(self, held, duration_ms, on_lost, wanted)


@dataclass(eq=False)
class Renewal:
    """The renewal of one held lease. Also a context manager, which stops it.

    It renews each third of the lease's time. A server that cannot be reached, is full, or does not
    promise what the store asks for, is tried again soon. No lease waits for another's renewal. The
    timers ring at common moments, so the leases that are due then are renewed in one write.
    """

    leases: Leases
    held: HeldLease
    duration_ms: int
    on_lost: Callable[[LeaseLost], object]
    wanted: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        self._home, self._loop = asyncio.get_running_loop(), self.leases.loop()
        self._stopped = False
        self._next: SharedTimer | asyncio.Task[None] | None = None
        _call(self._loop, self._wait, _THIRD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Renew it no more, and report nothing. Safe to repeat."""
        self._stopped = True
        _call(self._loop, self._cancel)

    async def renew(self) -> None:
        """Renew the lease now, and report if it is lost. Errors: BackendError, ConfigError."""
        try:
            await self.leases.renew(self.held, duration_ms=self.duration_ms)
        except LeaseLost as lost:
            _call(self._home, self._lose, lost)

    def _lose(self, lost: LeaseLost) -> None:
        if not self._stopped:
            self.stop()
            self.on_lost(lost)

    def _cancel(self) -> None:
        if self._next is not None:
            self._next.cancel()
            # A timer refers back to this.
            self._next = None

    def _wait(self, moments: int) -> None:
        """Wait for one of the common moments, of which there are 30 in a lease's length."""
        apart_s = self.duration_ms / 30_000
        when_s = (self._loop.time() // apart_s + moments) * apart_s
        self._next = self.leases.timers.at(when_s, self._begin, loop=self._loop)

    def _begin(self) -> None:
        if self.wanted is None or self.wanted():
            self._next = self._loop.create_task(self._beat(), name="redis_state lease")

    async def _beat(self) -> None:
        moments = _THIRD
        try:
            await self.renew()
        except RedisStateError as error:
            log.warning("a lease could not be renewed: %s", error)
            moments = 1
        if not self._stopped:
            self._wait(moments)


def _call(loop: asyncio.AbstractEventLoop, do: Callable[..., None], *arguments: Any) -> None:
    """Call in a loop: at once in this one, soon in that of another thread."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:  # a generator may be closed without a loop
        here = None
    if loop is here:
        do(*arguments)
        return
    with suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(do, *arguments)


def new_owner() -> str:
    """Return a new id for one claim."""
    return secrets.token_urlsafe(12)
