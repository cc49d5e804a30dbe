"""Who works on an A2A task, and what becomes of it when that server dies.

The server that writes a task in work holds the task's lease, taken in the same step, and renews it
as long as it lives. Whoever finds that one has run out (a reader, a watcher, or the sweep of any
server) ends the task, once and fenced: the dead server's later writes find a task that has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from zlib import crc32

from redis_state.errors import BackendError, LeaseLost, LostRace, RedisStateError
from redis_state.primitives.lease import Held, Leases, new_owner
from redis_state.primitives.signal import Row
from redis_state.stores.a2a_versions import (
    A2ATasks,
    Draft,
    Phase,
    Ref,
    Rule,
    Snapshot,
    Version,
    new_write,
)
from redis_state.transport.keys import WATCH_SHARDS

log: logging.Logger = logging.getLogger(__name__)

# What is left of a lease is counted in whole milliseconds.
_GRAIN_MS = 20
_PARKED_MS = 600_000
_SWEPT = 100

Ending = Callable[[bytes], Draft]
Told = Callable[[Ref, Draft], Awaitable[None]]


class A2AOwner:
    """One server's part in the tasks: what it works on, and its eye on what others do.

    ``ending`` makes of a task's body the draft that ends it. ``on_orphan`` is called by the one
    server that ended it, once, unless that one dies at this moment.
    """

    def __init__(self, tasks: A2ATasks, ending: Ending, on_orphan: Told | None = None) -> None:
        self.tasks: A2ATasks = tasks
        self.name: str = new_owner()
        self.held: dict[Ref, Held] = {}
        self._ending = ending
        self._on_orphan = on_orphan
        self._leases = Leases(tasks.base.scripts, keep_ms=tasks.keep_ms)
        self._heart: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Future[None]] = set()
        self._closed = False

    def is_own(self, row: Row) -> bool:
        """Tell whether this server wrote a row."""
        return row.id.startswith(self.name.encode() + b".")

    def begin(self) -> None:
        """See to it that this server's leases are renewed and others' looked at. Safe to repeat."""
        loop = asyncio.get_running_loop()
        heart = self._heart
        if self._closed or (heart and not heart.done() and heart.get_loop() is loop):
            return
        self._heart = loop.create_task(self._tend(), name="redis_state a2a heart")

    async def save(self, ref: Ref, draft: Draft, rule: Rule) -> Version | None:
        """Write a version, and hold the task's lease while it is worked on. See `A2ATasks.write`.

        A crash after any step leaves a task that somebody will look at.
        """
        self.begin()
        if draft.phase is Phase.OPEN and ref not in self.held:
            await self._watch(ref, self._lease_ms + _GRAIN_MS, sooner=True)
        written = await self.tasks.write(
            ref, draft, rule, write=new_write(self.name), owner=self.name
        )
        if written is None:
            return None
        version, epoch = written
        if draft.phase is Phase.OPEN and not self._closed:
            self.held[ref] = Held(self.tasks.keys(ref).lease, self.name, epoch)
        else:
            self.held.pop(ref, None)
        return version

    async def look(self, ref: Ref) -> Snapshot | None:
        """Read a task; one whose owner is dead is ended first, so what is read is the truth."""
        self.begin()
        while True:
            found = await self.tasks.read(ref)
            if found is None or not found.is_orphan:
                return found
            if ref in self.held:
                # Our own, and here we are: a loop that was held up has not renewed it.
                await self._renew(ref)
                return found
            await self._end(ref, found, dead_epoch=found.epoch)

    async def drop(self, ref: Ref) -> bool:
        """Delete a task."""
        self.held.pop(ref, None)
        return await self.tasks.drop(ref, write=new_write(self.name))

    async def follow(self, ref: Ref, cursor: str) -> AsyncGenerator[Row, None]:
        """Yield the rows after a cursor and go on live, until the task has ended or is deleted.

        The last row's data begins with the phase ENDED or GONE. Yields nothing if the cursor is at
        the end already. It ends also when the task's owner dies. Errors: CursorGap.
        """
        found = await self.look(ref)
        n = int(cursor.partition("-")[0])
        if found is not None and found.phase in _LAST and n >= found.version.n:
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
        """Look at the tasks whose lease may have run out; return how many there were."""
        scripts, keys = self.tasks.base.scripts, self.tasks.base.keys
        replies = await asyncio.gather(
            *(
                scripts.claim_due(keys.a2a_watch(shard), limit=_SWEPT, hold_ms=self._lease_ms)
                for shard in range(WATCH_SHARDS)
            )
        )
        due: list[bytes] = [entry for reply in replies for entry in reply.facts]
        await asyncio.gather(*map(self._inspect, due))
        return len(due)

    async def aclose(self) -> None:
        """Stop renewing, and end at once what is still worked on here: nobody else will go on."""
        self._closed = True
        if self._heart is not None:
            self._heart.cancel()
            with suppress(RuntimeError):  # of another loop, which has ended
                await asyncio.wait({self._heart})
        for ref in list(self.held):
            with suppress(BackendError):
                found = await self.tasks.read(ref)
                if found is not None and found.owner == self.name:
                    await self._end(ref, found, dead_epoch=None)
        self.held.clear()
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(ending for ending in self._endings if ending.get_loop() is loop),
            return_exceptions=True,
        )

    @property
    def _lease_ms(self) -> int:
        return self.tasks.limits.lease_ms

    @asynccontextmanager
    async def _attending(self, ref: Ref) -> AsyncGenerator[None, None]:
        """Look at a task whenever its lease may have run out, for the length of the block."""

        async def attend() -> None:
            while True:
                wait_ms = self._lease_ms
                try:
                    found = await self.look(ref)
                    if found is not None and found.phase is Phase.OPEN and found.left_ms > 0:
                        wait_ms = found.left_ms
                except RedisStateError as error:
                    log.warning("a task's owner could not be looked at: %s", error)
                    wait_ms = min(self._lease_ms, 1000)
                await asyncio.sleep((wait_ms + _GRAIN_MS) / 1000)

        eye = asyncio.create_task(attend(), name="redis_state a2a owner")
        try:
            yield
        finally:
            eye.cancel()
            await asyncio.wait({eye})

    async def _end(self, ref: Ref, found: Snapshot, *, dead_epoch: int | None) -> None:
        """End a task that nobody works on any more, and tell of it, unless somebody was first.

        It is done also if the caller is cancelled, as one is that hears of the end meanwhile.
        """
        ending = asyncio.ensure_future(self._end_once(ref, found, dead_epoch))
        self._endings.add(ending)
        ending.add_done_callback(self._ended)
        await asyncio.shield(ending)

    def _ended(self, ending: asyncio.Future[None]) -> None:
        self._endings.discard(ending)
        if not ending.cancelled() and ending.exception() is not None:
            log.warning("a task could not be ended: %s", ending.exception())

    async def _end_once(self, ref: Ref, found: Snapshot, dead_epoch: int | None) -> None:
        draft = self._ending(found.body)
        rule = Rule.at(found.version.n)
        try:
            await self.tasks.write(
                ref, draft, rule, write=new_write(self.name), dead_epoch=dead_epoch
            )
        except LostRace:
            return
        log.warning("task %r was ended: its server is gone", ref.task_id)
        if self._on_orphan is not None:
            try:
                await self._on_orphan(ref, draft)
            except Exception:
                log.exception("telling of the end of task %r failed", ref.task_id)

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                await asyncio.gather(*map(self._renew, list(self.held)))
                await self.sweep()
            except RedisStateError as error:
                log.warning("the leases of tasks could not be tended: %s", error)

    async def _renew(self, ref: Ref) -> None:
        held = self.held.get(ref)
        if held is None:
            return
        try:
            await self._leases.renew(held, duration_ms=self._lease_ms)
        except LeaseLost:
            # Another server writes it now, or it was ended. A save that came meanwhile counts.
            if self.held.get(ref) is held:
                del self.held[ref]

    async def _inspect(self, entry: bytes) -> None:
        scope, _, task_id = entry.decode("utf-8", "surrogatepass").partition("|")
        ref = Ref(scope, task_id)
        found = await self.look(ref)
        if found is None or found.phase in _LAST:
            sender = self.tasks.base.scripts.transport.sender
            await sender.send("ZREM", self._shard(entry), entry, repeatable=True)
        elif found.phase is Phase.OPEN:
            await self._watch(ref, max(found.left_ms, 0) + _GRAIN_MS, sooner=True)
        else:
            # It is worked on by nobody. Taking it out could cross with who begins to.
            await self._watch(ref, _PARKED_MS, sooner=False)

    async def _watch(self, ref: Ref, delay_ms: int, *, sooner: bool) -> None:
        entry = f"{ref.scope}|{ref.task_id}".encode("utf-8", "surrogatepass")
        await self.tasks.base.scripts.watch_entry(
            self._shard(entry), entry=entry, delay_ms=delay_ms, sooner=sooner
        )

    def _shard(self, entry: bytes) -> str:
        return self.tasks.base.keys.a2a_watch(crc32(entry) % WATCH_SHARDS)


_LAST = frozenset({Phase.ENDED, Phase.GONE})
_LAST_BYTES = frozenset(phase.encode() for phase in _LAST)
