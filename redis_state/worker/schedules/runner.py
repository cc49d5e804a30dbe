"""The loop that submits what schedules say. Every worker runs it; each occurrence is one task.

    claim    what is due is put off by five seconds, so one worker at a time looks at it
    decide   the occurrences become the record's outbox, in one compare-and-set with the time up to
             which all is settled
    submit   each task in the outbox, under an id that comes from schedule and occurrence
    settle   the outbox is emptied and the next look put down, in one compare-and-set

A worker that dies before it decided has done nothing. One that dies later leaves the outbox, which
the next look submits: as it was decided, also if the schedule was edited since. What an edit, a
trigger or another worker has written meanwhile refuses the write, and a later look reads again.
Time is the server's: it comes with the claim.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

from redis_state.errors import BackendError, LostRace, VersionConflict
from redis_state.primitives.watchlist.watchlist import Fate, WatchClaim
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.schedules import (
    PlannedTask,
    PlannedTasks,
    ScheduleStore,
    StoredSchedule,
    id_of,
    outbox_field,
    planned_field,
)
from redis_state.worker.observe.stats import WorkerStats
from redis_state.worker.queue.queue import Queue
from redis_state.worker.schedules.model import Schedule
from redis_state.worker.schedules.plan import OccurrencePlan, plan
from redis_state.worker.schedules.submit import HOLD_MS, Submitter

log: logging.Logger = logging.getLogger(__name__)

_AT_ONCE = 100
# Of a look whose schedule is written meanwhile.
_TRIES = 3
_PAUSE_S = 0.8
_NEXT_S = 0.01
_TROUBLE_MS = 10_000


class ScheduleRunner:
    """Look at the schedules that are due."""

    def __init__(self, store: RedisStateStore, queue: Queue) -> None:
        self.submitted: int = 0
        self._payloads = store.base.payloads
        self._schedules = ScheduleStore(store.base)
        self._submitter = Submitter(store, queue)

    async def run_once(self) -> int:
        """Look at what is due, 100 schedules at most; return how many those were.

        With nothing due that is one call. Errors: BackendError; what was claimed is then due again
        within five seconds.
        """
        claims = await self._schedules.due.claim_due(limit=_AT_ONCE, hold_ms=HOLD_MS)
        if claims:
            await self._schedules.due.inspect(claims, self._look, trouble_ms=_TROUBLE_MS)
        return len(claims)

    async def _look(self, claim: WatchClaim) -> int | Fate:
        # A mark ends in a half.
        now_ms = round(float(claim.mark) + 0.5) - HOLD_MS
        for _ in range(_TRIES):
            try:
                return await self._look_at(id_of(claim.entry), now_ms)
            except VersionConflict:
                continue
            except LostRace:
                break
        # Who has written it has also put when to look at it, or the claim runs out.
        return Fate.LEFT

    async def _look_at(self, schedule_id: str, now_ms: int) -> Fate:
        found = await self._schedules.load(schedule_id)
        if found is None:
            return Fate.OUT
        definition = Schedule.read(found.definition, decode=self._payloads.as_object)
        if found.outbox:
            await self._submit(found, definition, now_ms)
            found = await self._empty_outbox(found)
        decided = plan(
            definition,
            paused=found.paused,
            after_ms=found.after_ms,
            now_ms=now_ms,
            running=await self._is_running(found, definition),
        )
        if decided.occurrences:
            found = await self._decide(found, definition, decided)
            await self._submit(found, definition, now_ms)
        fields = (
            outbox_field(self._payloads, ())
            | {"after": b"%d" % decided.after_ms}
            | _skipped(decided)
        )
        await self._schedules.save(
            schedule_id, fields, expected=found.version, check_ms=decided.check_ms
        )
        return Fate.OUT if decided.check_ms is None else Fate.LEFT

    async def _is_running(self, found: StoredSchedule, definition: Schedule) -> bool:
        if definition.overlap == "allow" or found.last is None:
            return False
        return await self._submitter.is_unfinished(found.last)

    async def _decide(
        self, found: StoredSchedule, definition: Schedule, decided: OccurrencePlan
    ) -> StoredSchedule:
        tasks = tuple(
            PlannedTask(definition.session_of(at_ms), definition.task_of(at_ms), at_ms)
            for at_ms in decided.occurrences
        )
        outbox, fired = (PlannedTasks(tasks),), found.fired + len(tasks)
        fields = (
            outbox_field(self._payloads, outbox)
            | planned_field("last", tasks[-1])
            | _skipped(decided)
        )
        fields |= {"after": b"%d" % decided.after_ms, "fired": b"%d" % fired}
        version, _ = await self._schedules.save(found.schedule_id, fields, expected=found.version)
        return replace(found, version=version, outbox=outbox)

    async def _submit(self, found: StoredSchedule, definition: Schedule, now_ms: int) -> None:
        for planned in found.outbox:
            job = definition.job() if planned.job is None else planned.job
            new = await self._submitter.submit(planned.tasks, job, held_from_ms=now_ms)
            self.submitted += sum(new)

    async def _empty_outbox(self, found: StoredSchedule) -> StoredSchedule:
        version, _ = await self._schedules.save(
            found.schedule_id, outbox_field(self._payloads, ()), expected=found.version
        )
        return replace(found, version=version, outbox=())


async def run_schedules(
    store: RedisStateStore, queue: Queue, *, stats: WorkerStats | None = None
) -> None:
    """Look at schedules until cancelled. Any trouble with the servers is survived."""
    runner, failing = ScheduleRunner(store, queue), False
    while True:
        looked = 0
        try:
            looked = await runner.run_once()
            failing = False
        except Exception as error:
            if not failing:
                unknown = None if isinstance(error, BackendError) else error
                log.warning("schedules cannot be run, trying again: %s", error, exc_info=unknown)
            failing = True
        if stats is not None:
            stats.scheduled = runner.submitted
        pause_s = _NEXT_S if looked == _AT_ONCE else _PAUSE_S * random.uniform(1.25, 1.5)
        await asyncio.sleep(pause_s)


def _skipped(decided: OccurrencePlan) -> dict[str, bytes]:
    return {} if decided.skipped is None else {"skipped": codec.encode(decided.skipped)}
