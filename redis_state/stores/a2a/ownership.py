"""Which server works on an A2A task, and how the task ends when that server dies.

The server that writes a working task takes its lease in the same step, and renews it while it
lives. A reader, a watcher or the sweep of any server that finds an expired lease ends the task,
once and fenced. The dead server's later writes find a task that has ended.

A stall of the Redis server is not the death of an A2A server. A write is repeated under its id for
up to a lease. A server that was itself out of touch ends no other server's task before those
servers had the time to renew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeVar

from redis_state.errors import (
    BackendError,
    LostRace,
    NoConnection,
    RedisStateError,
)
from redis_state.primitives.lease import HeldLease, Leases, Renewal, new_owner
from redis_state.primitives.signal import Row
from redis_state.primitives.watchlist.watchlist import Fate, WatchClaim, WatchList
from redis_state.scripts import ReplyCode
from redis_state.stores.a2a.ends import Ending, OnOrphan, TaskEnds
from redis_state.stores.a2a.retry import repeated
from redis_state.stores.a2a.run_failures import RunFailures
from redis_state.stores.a2a.task_model import (
    Draft,
    Phase,
    Ref,
    Rule,
    VersionedTask,
    VersionStamp,
    Written,
)
from redis_state.stores.a2a.tasks import A2ATasks, new_write

log: logging.Logger = logging.getLogger(__name__)

# What is left of a lease is counted in whole milliseconds.
_GRAIN_MS = 20
_PARKED_MS = 600_000
_SWEPT = 100
_SWEEP_MS = 1000
# What a server that got no reply needs to be in touch again, beside the time between two renewals.
_RECONNECT_MS = 1000

_SILENT = (
    "The server that worked on this task did not renew its lease: "
    "it died, hung, or could not reach Redis."
)
_STOPPED = "The server that worked on this task was stopped."

T = TypeVar("T")


class A2AOwner:
    """The tasks that one server works on, and its checks of the other servers' tasks.

    ``ending`` makes the draft that ends a task, from its id, its body and a reason for its readers.
    It also takes a body that cannot be read. ``on_orphan`` is called with a task that was ended,
    and its body. That it must be called is written together with the end. One server at a time
    calls it, under a lease, at least once: again if that server dies, or if the call fails.
    """

    def __init__(self, tasks: A2ATasks, ending: Ending, on_orphan: OnOrphan | None = None) -> None:
        self.tasks: A2ATasks = tasks
        self.name: str = new_owner()
        self.held: dict[Ref, Renewal] = {}
        scripts, keys = tasks.base.scripts, tasks.base.keys
        self._leases = Leases(scripts, keep_ms=tasks.limits.active_ms)
        self._watch = WatchList(scripts, keys, key_of=keys.a2a_watch)
        self.ends: TaskEnds = TaskEnds(tasks, self._watch, ending, on_orphan)
        self._heart: asyncio.Task[None] | None = None
        # When leases that ran out may be judged: not while this server is out of touch itself.
        self._judges_at = 0.0
        self._failures = RunFailures(self._lease_ms / 1000)
        self._closed = False

    def is_own(self, row: Row) -> bool:
        """Return whether this server wrote a row."""
        return row.id.startswith(self.name.encode() + b".")

    def begin(self) -> None:
        """See to it that the leases of all servers are looked at. Safe to repeat."""
        loop = asyncio.get_running_loop()
        heart = self._heart
        if self._closed or (heart and not heart.done() and heart.get_loop() is loop):
            return
        self._heart = loop.create_task(self._sweep_regularly(), name="redis_state a2a heart")

    async def save(self, ref: Ref, draft: Draft, rule: Rule) -> VersionStamp | None:
        """Write a version, and hold the task's lease while it is worked on. See `A2ATasks.write`.

        Repeated under its id for up to a lease while the server does not reply. A crash after any
        step leaves a task that a server will inspect. After a save that failed the lease is renewed
        no more, unless another write only came first: the run may have ended with it. If it has
        not, its next save takes the lease again.
        """
        self.begin()
        held = self.held.get(ref)
        announce = self.ends.announced_here and draft.phase is Phase.ENDED
        writing = partial(
            self.tasks.write,
            *(ref, draft, rule),
            write=new_write(self.name),
            owner=self.name,
            announce=announce,
        )

        async def write() -> Written | None:
            if held is not None or (draft.phase is not Phase.OPEN and not announce):
                return await writing()
            # Before each try: a sweep takes the entry out while there is no task yet. So it may
            # behind it, if the write arrives late.
            return await self._watch.covering(
                ref.entry,
                lambda _: writing(),
                delay_ms=self._lease_ms + _GRAIN_MS,
                late=True,
            )

        try:
            written = await self.repeat(write)
        except LostRace:
            raise
        except BaseException as error:
            self._let_go(ref, held)
            self._failures.record(ref, "save it", error)
            raise
        self._failures.forget(ref)
        if written is None:
            return None
        self._let_go(ref, self.held.get(ref))
        if announce:
            self.ends.remember(ref)
        if draft.phase is Phase.OPEN and not self._closed:
            self.held[ref] = self._leases.keep(
                HeldLease(self.tasks.keys(ref).lease, self.name, written.epoch),
                duration_ms=self._lease_ms,
                # Another server writes it now, or it was ended.
                on_lost=lambda _: self.held.pop(ref, None),
            )
        return written.version

    async def read(self, ref: Ref, call: Callable[[], Awaitable[T]]) -> T:
        """Read what a run needs, for up to a lease. One that cannot read fails with that reason."""
        try:
            return await self.repeat(call)
        except BackendError as error:
            self._failures.record(ref, "read it", error)
            raise

    def fail_run(self, task_id: str, error: BackendError) -> None:
        """Renew the lease of a task no more: the events of its run could not be published."""
        for ref, held in list(self.held.items()):
            if ref.task_id == task_id:
                self._let_go(ref, held)
                self._failures.record(ref, "publish its events", error)

    def reason(self, ref: Ref) -> str:
        """Return why the run of a task failed here; empty if it did not, or long ago."""
        return self._failures.reason(ref)

    async def repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call of a run, which may be repeated, for up to a lease. See `repeated`."""
        return await repeated(call, self.tasks.base.scripts.transport, self._lease_ms / 1000)

    async def look(self, ref: Ref) -> VersionedTask | None:
        """Read a task; one whose owner is dead is ended first, so what is read is the truth.

        A task that is worked on here is read again for up to a lease while the server does not
        reply: its run must not fail of it.
        """
        self.begin()
        read = partial(self.tasks.read, ref)
        while True:
            found = await self.in_touch(self.repeat(read) if ref in self.held else read())
            if found is None or not found.is_orphan:
                return found
            if ref in self.held:
                # Our own, and here we are: a loop that was held up has not renewed it.
                await self.repeat(self.held[ref].renew)
            elif self.judges:
                own = self.reason(ref) if found.owner == self.name else ""
                await self.ends.write(ref, found, own or _SILENT, fenced=True)
            else:
                return found

    async def drop(self, ref: Ref) -> bool:
        """Delete a task; return whether there was one. Its watchers receive the end."""
        self._let_go(ref, self.held.get(ref))
        return await self.tasks.drop(ref, write=new_write(self.name)) is ReplyCode.OK

    async def follow(self, ref: Ref, cursor: str) -> AsyncGenerator[Row, None]:
        """Yield the rows after a cursor and continue live, until the task has ended or is deleted.

        The last row's data begins with the phase ENDED or GONE. Yields nothing if the cursor is at
        the end already. It ends also when the task's owner dies. Errors: CursorGap.
        """
        found = await self.look(ref)
        if found is not None and found.phase in _LAST and found.version.is_at(cursor):
            return
        async with (
            self._attending(ref),
            aclosing(self.tasks.log(ref).follow(after=cursor)) as rows,
        ):
            async for row in rows:
                yield row
                if row.data[:1] in _LAST_BYTES:
                    return

    async def sweep(self) -> int:
        """Inspect the tasks whose lease may have expired; return how many there were."""
        total = 0
        while True:
            # What cannot be looked at, or whose sweeper dies, is due again soon.
            claiming = self._watch.claim_due(limit=_SWEPT, hold_ms=self._pause_ms)
            due = await self.in_touch(claiming)
            await self._watch.inspect(due, self._judge, trouble_ms=self._pause_ms)
            total += len(due)
            if len(due) < _SWEPT:
                return total

    async def aclose(self) -> None:
        """Stop renewing, and end the tasks that are still worked on here: no other server continues
        them.
        """
        self._closed = True
        if self._heart is not None:
            self._heart.cancel()
            with suppress(RuntimeError):  # of another loop, which has ended
                await asyncio.wait({self._heart})
        held, self.held = self.held, {}
        for renewal in held.values():
            renewal.stop()
        await asyncio.gather(
            *(_tried(partial(self._give_up, ref), "a task could not be ended") for ref in held)
        )
        await self.ends.drain()

    @property
    def judges(self) -> bool:
        """Whether this server may take another for dead whose lease has run out.

        Not while this server gets no reply itself, and not until those that had none either could
        renew: a stall of the Redis server lets the leases of healthy servers run out.
        """
        return monotonic() >= self._judges_at

    async def in_touch(self, call: Awaitable[T]) -> T:
        """Wait for a reply, and note whether it came as replies do."""
        began = monotonic()
        try:
            reply = await call
        except NoConnection:
            self._judges_at = inf
            raise
        late = monotonic() - began > self._pause_ms / 1000
        if late or self._judges_at == inf:
            self._judges_at = monotonic() + (self._lease_ms / 3 + _RECONNECT_MS) / 1000
        return reply

    @property
    def _lease_ms(self) -> int:
        return self.tasks.limits.lease_ms

    @property
    def _pause_ms(self) -> int:
        """How long between two looks at what others do."""
        return min(self._lease_ms // 3, _SWEEP_MS)

    @asynccontextmanager
    async def _attending(self, ref: Ref) -> AsyncGenerator[None, None]:
        """Inspect a task whenever its lease may have expired, for the length of the block."""

        async def attend() -> None:
            while True:
                left_ms = await _tried(partial(self._left_ms, ref), "a task's owner is not known")
                wait_ms = self._pause_ms if left_ms is None else left_ms
                await asyncio.sleep((wait_ms + _GRAIN_MS) / 1000)

        eye = asyncio.create_task(attend(), name="redis_state a2a owner")
        try:
            yield
        finally:
            eye.cancel()
            await asyncio.wait({eye})

    async def _left_ms(self, ref: Ref) -> int:
        """End a task whose owner is dead; else return how long its lease still is, in ms."""
        found = await self.look(ref)
        if found is None:
            # It has expired, or was lost by the server: nothing more is published of it.
            await self.tasks.log(ref).call_followers()
        if found is None or found.phase is not Phase.OPEN or not found.owner:
            return self._lease_ms
        return found.left_ms if found.left_ms > 0 else self._pause_ms

    async def _give_up(self, ref: Ref) -> None:
        found = await self.tasks.read(ref)
        if found is not None and found.owner == self.name:
            await self.ends.write(ref, found, _STOPPED, fenced=False)

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._pause_ms / 1000)
            await _tried(self.sweep, "the leases of tasks could not be looked at")

    def _let_go(self, ref: Ref, held: Renewal | None) -> None:
        """Hold a task no more, unless a save that came meanwhile does."""
        if held is not None and self.held.get(ref) is held:
            self.held.pop(ref).stop()

    async def _judge(self, claim: WatchClaim) -> int | Fate:
        ref = Ref.of_entry(claim.entry)
        found = await self.look(ref)
        if found is not None and found.phase is Phase.ENDED and found.unannounced:
            # The announcing server holds it for a lease at least. If that one dies it is due again.
            self.ends.announce_soon(ref)
            return self._lease_ms + _GRAIN_MS
        if found is None or found.phase in _LAST:
            return Fate.OUT
        if found.phase is Phase.OPEN and found.owner:
            # One that may not be judged yet is looked at as often as a sweep begins.
            return found.left_ms + _GRAIN_MS if found.left_ms > 0 else self._pause_ms
        # Nobody works on it. Whoever begins to puts it on the list before.
        return _PARKED_MS


async def _tried(work: Callable[[], Coroutine[Any, Any, T]], trouble: str) -> T | None:
    """Run work whose failure must not affect other tasks. Log the failure and return None.

    The work is started here, so a caller that is cancelled before starts nothing.
    """
    try:
        return await work()
    except RedisStateError as error:
        log.warning("%s: %s", trouble, error)
    except Exception:
        log.exception("%s", trouble)
    return None


_LAST = frozenset({Phase.ENDED, Phase.GONE})
_LAST_BYTES = frozenset(phase.encode() for phase in _LAST)
