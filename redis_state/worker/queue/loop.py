"""The loop of a worker: claim jobs from its queues, run them, and end their claims.

The queues of a process are served by one loop, the preferred first: so they share one number of
slots without a lock. A round is begun at once when a job is put or ends, and each ``poll_s``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redis_state.errors import BackendError, NoConnection
from redis_state.futures import unawaited
from redis_state.timeouts import timeout
from redis_state.transport.subscriber import Subscription
from redis_state.worker.observe.stats import Polls
from redis_state.worker.queue.jobs.job import ClaimedJob, JobPayload, RunAgain
from redis_state.worker.queue.jobs.parked import ParkedFor, ParkedJobs
from redis_state.worker.queue.queue import Queue

log: logging.Logger = logging.getLogger(__name__)

_LISTEN_AGAIN_S = 1.0
_END_AGAIN_S = 1.0
# How long jobs that are being claimed, or whose claims are being ended, may hold up a stop. The
# sweeper finds what is left.
_SETTLE_S = 2.0
# So long what is tried again keeps its claim. Sweepers leave claims alone for longer.
_HELD_S = 1.0
# How many jobs one call claims or ends.
_PAGE = 128


Run = Callable[[ClaimedJob, JobPayload, Callable[[], None]], Awaitable[object]]


class QueueLoop:
    """Serve queues with one number of slots. ``served`` names each, with its most at a time.

    ``run`` is given what to call right before a handler begins. What a claim without that took of
    a rate is there again, however it ends. ``lanes`` are the handlers and versions whose parked
    jobs it claims too.
    """

    def __init__(
        self,
        queue: Queue,
        served: Sequence[tuple[str, int]],
        *,
        slots: int,
        poll_s: float,
        run: Run,
        polls: Polls,
        lanes: Sequence[str] = (),
    ) -> None:
        self._queue = queue
        self._served = served
        self._slots = slots
        self._poll_s = poll_s
        self._run = run
        self._polls = polls
        self._parked = ParkedJobs(queue, lanes)
        self._parked_first = False
        self._woken = asyncio.Event()
        self._picking = True
        self._polling: asyncio.Task[None] | None = None
        self._not_claiming = asyncio.Event()
        self._not_claiming.set()
        self._is_left = False
        self._running: dict[str, set[asyncio.Task[Any] | None]] = {
            name: set() for name, _ in served
        }
        # Runs that have not had their first turn of the loop.
        self._unbegun: dict[asyncio.Task[Any], ClaimedJob] = {}
        self._left = False
        self._ended: deque[tuple[ClaimedJob, int | ParkedFor | None]] = deque()
        self._ending: asyncio.Task[None] | None = None

    async def poll(self) -> None:
        """Claim and begin jobs until cancelled. Errors: BackendError."""
        before = self._polling
        if before is not None and not before.done():
            # It was cancelled, and ends with its claim: two at once would fill the slots twice.
            await asyncio.wait({before})
        self._is_left = False
        polling = self._polling = asyncio.create_task(self._poll())
        try:
            await asyncio.wait({polling})
        except asyncio.CancelledError:
            # A claim is not interrupted: what is claimed and not begun would wait for a sweeper.
            self._is_left = True
            unawaited(polling)
            if self._not_claiming.is_set():
                polling.cancel()
            raise
        polling.result()

    async def _poll(self) -> None:
        while True:
            self._woken.clear()
            for name, most in self._served:
                await self._claim_from(name, most)
            self._polls.now()
            with suppress(TimeoutError):
                async with timeout(self._poll_s):
                    await self._woken.wait()

    async def listen(self) -> None:
        """Wake up when a job is put, through lost connections, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, _ in self._served:
                group.create_task(self._listen_to(name))

    def stop_picking(self) -> None:
        """Claim no more jobs."""
        self._picking = False

    async def settle(self) -> None:
        """Wait until no job is about to begin. What takes too long for that is given up."""
        polling = self._polling
        if polling is None or polling.done():
            return
        with suppress(TimeoutError):
            async with timeout(_SETTLE_S):
                await self._not_claiming.wait()
        if not self._not_claiming.is_set():
            polling.cancel()
            await asyncio.wait({polling})

    def unfinished(self) -> set[asyncio.Task[Any]]:
        """Return the jobs of all queues that still run."""
        return {task for tasks in self._running.values() for task in tasks if task is not None}

    async def hand_off(self) -> None:
        """End what still runs, and give up its jobs. If cancelled, sweepers find what is left."""
        self.stop_picking()
        try:
            await self.settle()
            ending = self.unfinished()
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            # One that is cancelled before its first turn never comes as far as ending its claim.
            for job in self._unbegun.values():
                self._end(job, 0, begun=False)
            if self._ending is not None:
                await asyncio.wait({self._ending}, timeout=_SETTLE_S)
        finally:
            self._left = True
            if self._ending is not None:
                self._ending.cancel()

    async def _claim_from(self, name: str, most: int) -> None:
        while self._picking and not self._is_left:
            all_running = sum(map(len, self._running.values()))
            limit = min(most - len(self._running[name]), self._slots - all_running, _PAGE)
            if limit <= 0:
                return
            self._not_claiming.clear()
            try:
                claimed = await self._claim(name, limit)
            finally:
                self._end_claiming()
            if claimed < limit:
                return

    def _end_claiming(self) -> None:
        self._not_claiming.set()
        if self._is_left and self._polling is not None:
            self._polling.cancel()

    async def _claim(self, name: str, limit: int) -> int:
        parked = await self._claim_parked(name, limit) if self._parked.is_due(name) else 0
        if parked == limit:
            return limit
        claimed = await self._queue.claim(name, limit=limit - parked)
        self._begin(name, claimed)
        if self._parked.has_news(name):
            self._woken.set()
        return parked + len(claimed)

    async def _claim_parked(self, name: str, limit: int) -> int:
        """Claim parked jobs for half of the slots: neither they nor the queued ones starve."""
        self._parked_first = not self._parked_first
        share = (limit + self._parked_first) // 2
        claimed = await self._parked.claim(name, limit=share) if share else []
        self._begin(name, claimed)
        if len(claimed) == share:
            self._woken.set()
        return len(claimed)

    def _begin(self, name: str, claimed: Sequence[ClaimedJob]) -> None:
        for job in claimed:
            if job.task is None:
                log.warning("a job that names no task is dropped")
                self._end(job, None, begun=False)
            elif self._picking:
                run = asyncio.create_task(self._run_job(job, job.task))
                self._unbegun[run] = job
                self._running[name].add(run)
            else:
                self._end(job, 0, begun=False)

    async def _run_job(self, job: ClaimedJob, task: JobPayload) -> None:
        again_ms: int | ParkedFor | None = None
        begun = False

        def begin() -> None:
            nonlocal begun
            begun = True

        running = asyncio.current_task()
        if running is not None:
            self._unbegun.pop(running, None)
        log.info("task %r: a run is begun", task.task_id)
        try:
            await self._run(job, task, begin)
        except ParkedFor as parked:
            again_ms = parked
        except RunAgain as again:
            again_ms = round(again.defer_s * 1000)
            if job.is_limited and again.defer_s <= _HELD_S:
                # Under its claim: meanwhile the next one of its session would have its turn.
                again_ms = 0
                await asyncio.sleep(again.defer_s)
        except asyncio.CancelledError:
            again_ms = 0
            raise
        except Exception:
            # A task that exists is on the watch list, and is queued again from there.
            log.exception("a job is dropped")
        finally:
            # Here, because the next round begins before a callback of the task.
            self._running[job.queue].discard(running)
            self._end(job, again_ms, begun=begun)

    def _end(self, job: ClaimedJob, again_ms: int | ParkedFor | None, *, begun: bool) -> None:
        if self._left:
            return
        ended = job if begun is job.begun else replace(job, begun=begun)
        self._ended.append((ended, again_ms))
        if self._ending is None or self._ending.done():
            self._ending = asyncio.create_task(self._end_claims())
        self._woken.set()

    async def _end_claims(self) -> None:
        """End all claims that are to be ended, those of one turn of the loop together."""
        await asyncio.sleep(0)
        while self._ended:
            grouped: defaultdict[str, list[tuple[ClaimedJob, int | None]]] = defaultdict(list)
            parked: list[tuple[ClaimedJob, ParkedFor]] = []
            for _ in range(min(len(self._ended), _PAGE)):
                job, again = self._ended.popleft()
                if isinstance(again, ParkedFor):
                    parked.append((job, again))
                else:
                    grouped[job.queue].append((job, again))
            for name, jobs in grouped.items():
                try:
                    await self._queue.end(name, jobs)
                except BackendError as error:
                    await self._end_later(jobs, error)
            if parked:
                await self._park(parked)

    async def _park(self, jobs: Sequence[tuple[ClaimedJob, ParkedFor]]) -> None:
        parking = (self._queue.park(job, again.lane, version=again.version) for job, again in jobs)
        outcomes = await asyncio.gather(*parking, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not isinstance(failure, BackendError):
                raise failure
            # Those that are parked already find their claims ended.
            await self._end_later(jobs, failure)
            break

    async def _end_later(
        self, jobs: Sequence[tuple[ClaimedJob, int | ParkedFor | None]], error: BackendError
    ) -> None:
        log.warning("claims of jobs are not ended, trying again: %s", error)
        self._ended.extend(jobs)
        await asyncio.sleep(_END_AGAIN_S)

    async def _listen_to(self, name: str) -> None:
        subscription: Subscription | None = None
        while True:
            try:
                subscription = subscription or self._queue.listen(name)
                # Once subscribed too: jobs put before it are not announced again.
                await subscription.next()
                self._woken.set()
            except (BackendError, NoConnection) as error:
                log.info("nobody can wake this worker, it looks by itself: %s", error)
                subscription = None
                await asyncio.sleep(_LISTEN_AGAIN_S)
