"""The ends of A2A tasks whose server died or was stopped, and the announcements of ends.

That an end must be announced is written together with the end. One server at a time announces it,
under a lease, at least once: again if that server dies, or if the call fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from redis_state.errors import LeaseLost, LostRace
from redis_state.primitives.lease import Leases
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.stores.a2a.retry import repeated
from redis_state.stores.a2a.task_model import Draft, Phase, Ref, VersionedTask
from redis_state.stores.a2a.tasks import A2ATasks
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

# How long an announcement may take; after a failure it is repeated in so long.
_PARKED_MS = 600_000
# Of ends that nobody announces here, such as those of cancels of another server's tasks.
_MOST_KNOWN = 10_000

Ending = Callable[[str, bytes, str], Draft]
OnOrphan = Callable[[Ref, bytes], Awaitable[None]]


class TaskEnds:
    """The ends that one server writes for others, and those that it announces. See `A2AOwner`."""

    def __init__(
        self, tasks: A2ATasks, watch: WatchList, draft_of: Ending, on_orphan: OnOrphan | None
    ) -> None:
        self._tasks = tasks
        self._watch = watch
        self._draft_of = draft_of
        self._on_orphan = on_orphan
        self._announcers = Leases(tasks.base.scripts, keep_ms=tasks.limits.finished_ms)
        # Ends that were written here and are not announced yet, by task id: all that a sender
        # knows. None if nobody announces them here.
        self._known: dict[str, Ref] | None = None
        self._working: set[asyncio.Future[None]] = set()

    @property
    def announced_here(self) -> bool:
        """Whether this server announces the ends that it writes."""
        return self._known is not None

    def announce_here(self, announce: OnOrphan) -> None:
        """Record with each end that is written here that it must be announced, until `announced`.

        If this server dies before, or is silent for a lease, another one calls its ``announce``.
        """
        self._known = {}
        self._on_orphan = self._on_orphan or announce

    async def announced(self, task_id: str) -> None:
        """Record that the end of a task was announced here, if it has ended."""
        ref = self._known.pop(task_id, None) if self._known else None
        if ref is not None:
            await self._record_announced(ref)

    def remember(self, ref: Ref) -> None:
        """Remember an end that was written here, until it is announced."""
        if self._known is not None:
            self._known[ref.task_id] = ref
            if len(self._known) > _MOST_KNOWN:
                # Another server announces it, perhaps once more.
                del self._known[next(iter(self._known))]

    async def drain(self) -> None:
        """Wait until all ends and announcements that began in this loop are done."""
        loop = asyncio.get_running_loop()
        while ours := [one for one in self._working if one.get_loop() is loop]:
            await asyncio.wait(ours)

    async def write(self, ref: Ref, found: VersionedTask, reason: str, *, fenced: bool) -> None:
        """End a task whose server is gone, unless another caller was first.

        It is done also if the caller is cancelled, as one is that hears of the end meanwhile.
        """
        await asyncio.shield(self._start(self._end_once(ref, found, reason, fenced=fenced)))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        started = asyncio.create_task(work)
        self._working.add(started)
        started.add_done_callback(self._ended)
        return started

    def _ended(self, ending: asyncio.Future[None]) -> None:
        self._working.discard(ending)
        if not ending.cancelled() and ending.exception() is not None:
            log.warning("an end could not be written or announced: %s", ending.exception())

    async def _end_once(self, ref: Ref, found: VersionedTask, reason: str, *, fenced: bool) -> None:
        draft = self._draft_of(ref.task_id, found.body, reason)
        try:
            announce = self._on_orphan is not None
            await self._tasks.end(ref, draft, found, fenced=fenced, announce=announce)
        except LostRace:
            return
        log.warning("task %r was ended as failed: %s", ref.task_id, reason)
        self.announce_soon(ref)

    def announce_soon(self, ref: Ref) -> None:
        """Announce an end. Nobody waits for it: it may be slow, and other tasks are to be seen."""
        if self._on_orphan is not None:
            self._start(self._announce(ref, self._on_orphan))

    async def _announce(self, ref: Ref, on_orphan: OnOrphan) -> None:
        """Announce an end, unless another server does or has. The ended task's lease says who."""
        lease, duration_ms = self._tasks.keys(ref).lease, self._tasks.limits.lease_ms
        held = await self._announcers.acquire(lease, duration_ms=duration_ms)
        if held is None:
            return
        with self._announcers.keep(held, duration_ms=duration_ms, on_lost=_ignore):
            found = await self._tasks.read(ref)
            if found is not None and found.phase is Phase.ENDED and found.unannounced:
                try:
                    async with timeout(_PARKED_MS / 1000):
                        await on_orphan(ref, found.body)
                except Exception:
                    log.exception("reporting the end of task %r failed", ref.task_id)
                    await self._watch.put(ref.entry, delay_ms=_PARKED_MS)
                else:
                    await self._record_announced(ref)
        await self._announcers.release(held)

    async def _record_announced(self, ref: Ref) -> None:
        """Record that an end was announced. Tried for up to a lease."""
        transport, lease_s = self._tasks.base.scripts.transport, self._tasks.limits.lease_ms / 1000
        await repeated(partial(self._tasks.announced, ref), transport, lease_s)


def _ignore(lost: LeaseLost) -> None:
    log.warning("an end is announced elsewhere too: %s", lost)
