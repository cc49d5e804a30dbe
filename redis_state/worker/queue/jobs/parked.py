"""Jobs that wait for a worker with their handler's version: parked, where only such workers look.

A worker that lacks a task's version parks its job: the claim ends, and the job keeps its place in a
lane of its queue. The lane is named by handler and version. No claim of the queue finds the job. A
parked job is not touched until a worker that serves the lane claims from it.

Each claim of a queue says when a job was last parked there, or claimed from a lane. So a worker
looks into its lanes once at its start, and again after that has changed. A server whose history
went back may say again what a worker has seen: so a worker whose queue has ever had a parked job
looks now and then without a reason.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from redis_state.transport.key_text import escape, unescape
from redis_state.worker.queue.jobs.job import ClaimedJob, RunAgain
from redis_state.worker.queue.queue import Queue

# arq's own runner parks nothing: it tries again after so long, not all at the same moment.
_AGAIN_S = (5.0, 15.0)
_QUEUE_EVERY_S = 5.0
_CHECK_ANYHOW_S = 20.0
_PAGE = 128


class ParkedFor(RunAgain):
    """This worker lacks the version of a task, which is PENDING again, at ``version`` of its
    record. Its job is to wait in ``lane``.
    """

    def __init__(self, lane: str, *, version: int) -> None:
        super().__init__(defer_s=random.uniform(*_AGAIN_S))
        self.lane = lane
        self.version = version


def lane_of(handler: str, version: str | None) -> str:
    """Write the lane of a handler's version; None for tasks that have begun under none."""
    return f"v:{escape('handler', handler)}/{escape('version', version or '')};"


def read_lane(lane: str) -> tuple[str, str | None]:
    """Read the handler and the version of a lane. A long name's digest is returned for it."""
    handler, _, version = lane.removeprefix("v:").removesuffix(";").partition("/")
    return unescape(handler), unescape(version) or None


class ParkedJobs:
    """The lanes that a worker process serves, in each of its queues."""

    def __init__(self, queue: Queue, lanes: Sequence[str]) -> None:
        self._queue = queue
        self._lanes = list(lanes)
        self._seen: dict[str, bytes] = {}
        self._more: set[str] = set()
        self._look_at_s: dict[str, float] = {}

    def has_news(self, queue: str) -> bool:
        """Return whether a job was parked in a queue since the last look into its lanes."""
        return self._queue.parked_at(queue) != self._seen.get(queue, b"")

    def is_due(self, queue: str) -> bool:
        """Return whether there may be jobs in the lanes. Some may wait for limits of the queue."""
        if queue in self._more or self.has_news(queue):
            return True
        return bool(self._seen.get(queue)) and monotonic() >= self._look_at_s[queue]

    async def claim(self, queue: str, *, limit: int) -> list[ClaimedJob]:
        """Claim jobs from the lanes. Errors: BackendUnavailable."""
        # So that no lane is always the first.
        random.shuffle(self._lanes)
        claimed, parked, more = await self._queue.claim_parked(queue, self._lanes, limit=limit)
        self._seen[queue] = parked
        self._look_at_s[queue] = monotonic() + _CHECK_ANYHOW_S * random.uniform(0.75, 1.25)
        (self._more.add if more else self._more.discard)(queue)
        return claimed


async def queue_parked(queue: Queue, name: str, lanes: Sequence[str]) -> None:
    """Queue the parked jobs of these lanes again and again, for arq's own runner: it finds no
    others. A worker that lacks the version may be faster, and parks the job again.

    Until cancelled. Errors: BackendError.
    """
    while True:
        claimed, _, _ = await queue.claim_parked(name, lanes, limit=_PAGE)
        await queue.end(name, [(replace(job, begun=False), 0) for job in claimed])
        await asyncio.sleep(_QUEUE_EVERY_S)
