"""Claims on threads: one writer at a time, and every write of an earlier one is refused.

The claim is a lease in the thread's hash, so the script that writes compares it in the same step.
It outlives a deletion of the thread. A block's claim is found by a context variable: LangGraph
begins its tasks and threads with a copy of the context. One that outlives the block is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from redis_state import limits
from redis_state.errors import LeaseLost, ThreadClaimed
from redis_state.integrations.langgraph.threads.stored.places import thread_of
from redis_state.integrations.langgraph.threads.threads import Threads
from redis_state.primitives.lease import HeldLease, Leases, Renewal, new_owner
from redis_state.stores.base import Base


@dataclass(eq=False, slots=True)
class _Block:
    """The lease of a block. Copies of the context share it, so each sees that the block ended."""

    lease: HeldLease
    ended: bool = False


_held: ContextVar[Mapping[tuple[ThreadClaims, str], _Block]] = ContextVar(
    "redis_state_thread_claims", default=MappingProxyType({})
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a task that claims a thread: a name of the task without colons, the run's epoch."""

    task: str
    epoch: int


class ThreadClaims:
    """Take claims, and find the one of the running block."""

    def __init__(self, base: Base, threads: Threads, *, ttl_ms: int) -> None:
        self._base = base
        self.threads: Threads = threads
        self.leases: Leases = Leases(base.scripts, keep_ms=ttl_ms)

    def claim(self, thread_id: str, *, lease_s: float) -> ThreadClaim:
        """Return a claim that is not taken yet. Errors: InvalidField."""
        duration_ms = round(limits.seconds("lease_s", lease_s) * 1000)
        return ThreadClaim(self, thread_of(thread_id, "thread_id"), duration_ms)

    def held(self, thread_id: str) -> HeldLease | None:
        """Return the claim on a thread under which this code writes.

        Errors: LeaseLost if it began in a block that has ended.
        """
        held = _held.get()
        block = held.get((self, self.threads.keys(thread_id).thread)) if held else None
        if block is None:
            return None
        if block.ended:
            epoch = block.lease.epoch
            raise LeaseLost(f"thread {thread_id!r}", epoch=epoch, current=epoch, released=True)
        return block.lease

    async def take(self, thread_id: str, duration_ms: int, run: Run | None) -> HeldLease:
        """Take the claim on a thread, from an earlier run of the same task, or from none.

        Errors: ThreadClaimed.
        """
        key, owner = self.threads.keys(thread_id).thread, new_owner()
        if run is not None:
            owner = f"{run.task}:{run.epoch}:{owner}"
            await self._release_earlier(key, run)

        taken: list[HeldLease] = []

        async def acquire() -> HeldLease | int:
            found = await self.leases.take(key, duration_ms=duration_ms, owner=owner)
            if isinstance(found, HeldLease):
                taken.append(found)
            return found

        # The claim may be the thread's first key, and each thread is listed.
        try:
            found = await self.threads.listed(thread_id, acquire)
        except BaseException:
            if taken:
                self.leases.abandon(key, owner)
            raise
        if isinstance(found, HeldLease):
            return found
        raise ThreadClaimed(thread_id, left_ms=found)

    async def holder(self, thread_id: str) -> tuple[str, str]:
        """Return who has the claim on a thread, empty for none, and its number. One read."""
        return await self._holder(self.threads.keys(thread_id).thread)

    async def _holder(self, key: str) -> tuple[str, str]:
        found = await self._base.scripts.transport.commands.hmget(key, "owner", "epoch")
        owner, epoch = ("" if part is None else part.decode() for part in found)
        return owner, epoch

    async def _release_earlier(self, key: str, run: Run) -> None:
        """Release the claim of an earlier run: the task's lease has fenced it.

        Never that of a later one: then it is this run that stood still, and is fenced.
        """
        owner, epoch = await self._holder(key)
        task, _, rest = owner.partition(":")
        if rest and task == run.task and int(rest.partition(":")[0]) < run.epoch:
            await self._base.scripts.release_lease(key, owner=owner, epoch=int(epoch))


class ThreadClaim:
    """A claim on a thread, while its block runs. ``is_lost`` once another process took it over."""

    def __init__(self, claims: ThreadClaims, thread_id: str, duration_ms: int) -> None:
        self.thread_id: str = thread_id
        self.is_lost: bool = False
        self._claims = claims
        self._duration_ms = duration_ms
        self._lease: HeldLease | None = None
        self._renewal: Renewal | None = None
        # Of this block, and the ended one in which its code began, if any.
        self._block: _Block | None = None
        self._outer: _Block | None = None

    @property
    def epoch(self) -> int:
        """The number of the claim, greater than that of every claim before; 0 outside its block."""
        return 0 if self._lease is None else self._lease.epoch

    async def holder(self) -> tuple[str, str]:
        """Return who has the thread now, empty for none, and the number of that claim."""
        return await self._claims.holder(self.thread_id)

    async def take(self, run: Run | None = None) -> None:
        """Take the claim before its block is entered. Errors: ThreadClaimed."""
        if self._lease is not None:
            raise ThreadClaimed(self.thread_id, left_ms=self._duration_ms)
        self._lease = await self._claims.take(self.thread_id, self._duration_ms, run)

    async def __aenter__(self) -> Self:
        if self._renewal is not None:
            raise ThreadClaimed(self.thread_id, left_ms=self._duration_ms)
        if self._lease is None:
            await self.take()
        if self._lease is None:
            raise LeaseLost(f"thread {self.thread_id!r}", epoch=0, current=0)
        self._renewal = self._claims.leases.keep(
            self._lease, duration_ms=self._duration_ms, on_lost=self._lose
        )
        held, place = _held.get(), (self._claims, self._lease.key)
        self._block, self._outer = _Block(self._lease), held.get(place)
        _held.set({**held, place: self._block})
        return self

    async def __aexit__(self, *_: object) -> None:
        lease, self._lease = self._lease, None
        renewal, self._renewal = self._renewal, None
        block, self._block = self._block, None
        outer, self._outer = self._outer, None
        if lease is None or renewal is None or block is None:
            return
        renewal.stop()
        block.ended = True
        held = {place: other for place, other in _held.get().items() if other is not block}
        _held.set(held if outer is None else {**held, (self._claims, lease.key): outer})
        await self._claims.leases.give_back(lease)

    def _lose(self, lost: LeaseLost) -> None:
        del lost
        self.is_lost = True

    def __repr__(self) -> str:
        return f"<ThreadClaim on {self.thread_id!r} epoch={self.epoch}>"
