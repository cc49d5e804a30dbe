"""The SDK's QueueManager on Redis, for ``LegacyRequestHandler``; the newer handlers take none.

The server that runs an agent feeds its queue: its own consumer, and a log. A tap on another server
reads that log from its present end. The queue's end closes the taps, and so does the feeder's
death. After the feeder's death the last event is the end of the task. The SDK names queues by the
task's id alone, so these keys have no owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from a2a.server.events.event_queue import Event, EventQueueLegacy
from a2a.server.events.queue_manager import NoTaskQueue, QueueManager, TaskQueueExists

from redis_state.errors import BackendError, CursorGap, LeaseLost, NoConnection
from redis_state.integrations.a2a.backend import A2ABackend
from redis_state.integrations.a2a.convert import event_bytes, event_of, status_of, task_of
from redis_state.primitives.lease import HeldLease, Leases, new_owner
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.stores.a2a.task_model import Phase, Ref
from redis_state.stores.a2a.tasks import new_write
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_TTL_MS = 3_600_000
_EVENT, _CLOSED = b"e", b"x"
# A tap that nobody reads any more must not keep its reader for ever.
_PUT_S = 30.0


class _FedQueue(EventQueueLegacy):
    """A queue whose events and end are published to other servers first."""

    def __init__(self, feed: _Feed) -> None:
        super().__init__()
        self._feed = feed

    async def enqueue_event(self, event: Event) -> None:
        """Publish an event, then queue it."""
        if not self.is_closed():
            await self._feed.report(_EVENT + event_bytes(event))
        await super().enqueue_event(event)

    async def close(self, immediate: bool = False) -> None:  # noqa: FBT001, FBT002 - the SDK's
        """Publish the end, once, then close, also if publishing failed."""
        try:
            await self._feed.end()
        finally:
            await super().close(immediate)


class _Feed:
    """The log of one queue, and the lease of the server that feeds it."""

    def __init__(self, backend: A2ABackend, task_id: str) -> None:
        keys = backend.store.base.keys
        scripts = backend.store.base.scripts
        self._owner = backend.owner
        self._task_id = task_id
        self._writer = backend.owner.name
        self._publishing = asyncio.Lock()
        self._claim = new_owner()
        self._lease = keys.a2a_queue_lease(task_id)
        self._lease_ms = backend.tasks.limits.lease_ms
        self._leases = Leases(scripts, keep_ms=_TTL_MS)
        self._held: HeldLease | None = None
        self._beating: asyncio.Task[None] | None = None
        self._ended = False
        bounds = Bounds(backend.options.max_events, _TTL_MS)
        self.log: Log = Log(scripts, keys.a2a_queue(task_id), bounds, announce=True)

    async def begin(self) -> None:
        """Take the lease on feeding the queue, for as long as this process lives."""
        await self._take()
        self._beating = asyncio.create_task(self._beat(), name="redis_state a2a queue")

    async def _take(self) -> None:
        self._held = await self._leases.acquire(
            self._lease, duration_ms=self._lease_ms, owner=self._claim
        )

    async def _beat(self) -> None:
        """Hold the lease, and take it when who had it, perhaps dead by now, has it no more."""
        while True:
            if self._held is not None:
                lost: asyncio.Future[LeaseLost] = asyncio.get_running_loop().create_future()
                with self._leases.keep(
                    self._held, duration_ms=self._lease_ms, on_lost=lost.set_result
                ):
                    log.warning("a queue is fed elsewhere too: %s", await lost)
            await asyncio.sleep(self._lease_ms / 10_000)
            try:
                await self._take()
            except BackendError as error:
                log.warning("a queue's lease could not be taken: %s", error)

    async def report(self, data: bytes) -> None:
        """Append to the log, in the order of the calls, and again while the server is silent.

        The agent that could not be heard fails, and the legacy handler writes nothing of that: so
        its task is given up.
        """
        row = (new_write(self._writer).encode(), data)
        async with self._publishing:
            try:
                await self._owner.repeat(partial(self.log.add, row))
            except BackendError as error:
                self._owner.fail_run(self._task_id, error)
                raise

    async def end(self) -> None:
        """Publish the end. Safe to repeat. A reader that misses it sees the lease expire."""
        if self._ended:
            return
        self._ended = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        try:
            # Rows under way come before the end.
            async with self._publishing:
                await self.log.add((new_write(self._writer).encode(), _CLOSED))
            if self._held is not None:
                await self._leases.release(self._held)
        except BackendError as error:
            log.warning("the end of a queue could not be reported: %s", error)

    async def is_fed(self) -> bool:
        """Return whether some server feeds the queue."""
        return await self._leases.is_held(self._lease)


@dataclass(slots=True)
class _Tap:
    """A tap of another server's queue: what it fills, from where, and of whose task if known."""

    task_id: str
    ref: Ref | None
    queue: EventQueueLegacy
    feed: _Feed
    cursor: str

    async def put(self, row: Row) -> bool:
        """Put a row's event into the queue; False at the end, or if nobody reads the queue."""
        self.cursor = row.cursor
        if _is_end(row) or self.queue.is_closed():
            return False
        await self.give(event_of(row.data[1:]))
        return True

    async def give(self, event: Event) -> None:
        """Put an event into the queue."""
        async with timeout(_PUT_S):
            await self.queue.enqueue_event(event)


class RedisQueueManager(QueueManager):
    """Queues that can be tapped on any server."""

    def __init__(self, backend: A2ABackend) -> None:
        backend.feed_by(self)
        self.backend: A2ABackend = backend
        self._queues: dict[str, EventQueueLegacy] = {}
        self._pumps: set[asyncio.Task[None]] = set()

    async def add(self, task_id: str, queue: EventQueueLegacy) -> None:
        """Take a queue that was made elsewhere in this process. Errors: TaskQueueExists."""
        if task_id in self._queues:
            raise TaskQueueExists
        if isinstance(queue, _FedQueue):
            await self._hold(task_id, queue)
        else:
            feed = _Feed(self.backend, task_id)
            await self._hold(task_id, queue, feed)
            self._start(self._feed_from(await queue.tap(), feed))

    async def get(self, task_id: str) -> EventQueueLegacy | None:
        """Return the queue that this server feeds, or None."""
        return self._queues.get(task_id)

    async def tap(self, task_id: str) -> EventQueueLegacy | None:
        """Return a queue that gets all further events, wherever it is fed; None if nowhere."""
        queue = self._queues.get(task_id)
        if queue is not None:
            return await queue.tap()
        feed = _Feed(self.backend, task_id)
        cursor = await feed.log.end()
        if not await feed.is_fed():
            return None
        tapped = EventQueueLegacy()
        self.backend.tapped[task_id] += 1
        ref = self.backend.was_read(task_id)
        self._start(self._fill(_Tap(task_id, ref, tapped, feed, cursor)))
        return tapped

    async def close(self, task_id: str) -> None:
        """Close the queue that this server feeds. Errors: NoTaskQueue."""
        queue = self._queues.pop(task_id, None)
        if queue is None:
            raise NoTaskQueue
        self.backend.fed.discard(task_id)
        await queue.close()

    async def create_or_tap(self, task_id: str) -> EventQueueLegacy:
        """Return a new queue fed by this server, or a tap of the one that there is here."""
        queue = self._queues.get(task_id)
        if queue is not None:
            return await queue.tap()
        feed = _Feed(self.backend, task_id)
        made = _FedQueue(feed)
        await self._hold(task_id, made, feed)
        return made

    async def aclose(self) -> None:
        """Close every queue of this server, and the backend."""
        for queue in list(self._queues.values()):
            await queue.close(immediate=True)
        self._queues.clear()
        while self._pumps:
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
        await self.backend.aclose()

    async def _hold(self, task_id: str, queue: EventQueueLegacy, feed: _Feed | None = None) -> None:
        """Take a queue as one that this server feeds, unless feeding it cannot begin."""
        self._queues[task_id] = queue
        self.backend.fed.add(task_id)
        try:
            if feed is not None:
                await feed.begin()
        except BaseException:
            self._queues.pop(task_id, None)
            self.backend.fed.discard(task_id)
            raise

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        pump = asyncio.create_task(work)
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)

    async def _feed_from(self, child: EventQueueLegacy, feed: _Feed) -> None:
        """Publish the events of a queue that was not made here."""
        while True:
            try:
                event = await child.dequeue_event()
            except Exception:  # noqa: BLE001 - the SDK's QueueShutDown has another home in each version
                break
            child.task_done()
            try:
                await feed.report(_EVENT + event_bytes(event))
            except Exception as error:  # noqa: BLE001 - its taps are to end all the same
                log.error("a queue ends early, an event is unreported: %s", type(error).__name__)  # noqa: TRY400 - a traceback may show the event
                break
        await feed.end()

    async def _fill(self, tap: _Tap) -> None:
        """Fill a tap from the log, until the queue ends or its feeder dies."""
        reader = asyncio.ensure_future(self._copy(tap))
        try:
            while not reader.done():
                await asyncio.wait({reader}, timeout=feed_check_s(self.backend))
                if not reader.done() and await self._is_dead(tap.feed):
                    reader.cancel()
                    await asyncio.gather(reader, return_exceptions=True)
                    await self._deliver_end(tap)
            error = None if reader.cancelled() else reader.exception()
            if error is not None:
                log.error("a tap ends early: %s", type(error).__name__)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            self._start(self._end_tap(tap.task_id, tap.queue))

    async def _deliver_end(self, tap: _Tap) -> None:
        """Give a tap the rows its dead feeder still wrote, and then the end of the task.

        The queue's lease may run out before the task's: until then the task is not ended.
        """
        log.info("the server that fed a tap of task %r is dead", tap.task_id)
        owner, lease_s = self.backend.owner, self.backend.tasks.limits.lease_ms / 1000
        try:
            while True:
                page = await owner.repeat(partial(tap.feed.log.read, after=tap.cursor))
                for row in page.rows:
                    if not await tap.put(row):
                        return
                if page.at_end:
                    break
            async with timeout(2 * lease_s + _PUT_S):
                while tap.ref is not None and not tap.queue.is_closed():
                    found = await owner.repeat(partial(owner.look, tap.ref))
                    if found is None or found.phase is Phase.GONE:
                        return
                    if found.phase is not Phase.OPEN:
                        await tap.give(status_of(task_of(found.body)))
                        return
                    await asyncio.sleep(feed_check_s(self.backend))
        except (BackendError, CursorGap, TimeoutError) as error:
            log.warning("the end of a task could not be sent to a tap: %r", error)

    async def _is_dead(self, feed: _Feed) -> bool:
        """Return whether a feeder is dead, as far as this server can know at the moment."""
        try:
            owner = self.backend.owner
            return not await owner.in_touch(feed.is_fed()) and owner.judges
        except NoConnection as error:
            log.warning("a tap's feeder could not be looked at: %s", error)
            return False

    async def _end_tap(self, task_id: str, tapped: EventQueueLegacy) -> None:
        """Close a tap once it is read, and after a while also if nobody is there to read it."""
        try:
            async with timeout(_PUT_S):
                await tapped.close()
        except TimeoutError:
            await tapped.close(immediate=True)
        finally:
            self.backend.tapped -= Counter([task_id])

    async def _copy(self, tap: _Tap) -> None:
        while True:
            try:
                async with aclosing(tap.feed.log.follow(after=tap.cursor)) as rows:
                    async for row in rows:
                        if not await tap.put(row):
                            return
            except CursorGap as gap:
                log.warning("a tap cannot read on: %s", gap)
                if gap.reason not in {"ahead", "rewound"}:
                    return
                # The server lost what the tap has been given: what is new since comes next.
                tap.cursor = gap.resume_after
            except NoConnection as error:
                # Such as a server with other passwords: it may be the right one again.
                log.warning("a tap cannot read on at the moment: %s", error)
                await asyncio.sleep(feed_check_s(self.backend))


def feed_check_s(backend: A2ABackend) -> float:
    """Return how often a tap checks that its feeder lives."""
    return backend.tasks.limits.lease_ms / 3000


def _is_end(row: Row) -> bool:
    return row.data[:1] != _EVENT
