"""What a client does with schedules: save, list, pause, resume, trigger, backfill, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Literal, TypeVar

from redis_state import limits
from redis_state.errors import (
    CorruptState,
    InvalidField,
    LostRace,
    ScheduleUnknown,
    VersionConflict,
)
from redis_state.models import TaskStatus
from redis_state.models.tasks import new_id
from redis_state.primitives.listed import behind_a_write
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.optimistic import Together, retry_on_conflict
from redis_state.stores.schedules import (
    PlannedTask,
    PlannedTasks,
    ScheduleStore,
    StoredSchedule,
    outbox_field,
    triggers_field,
    without,
)
from redis_state.transport.clock import ms_of
from redis_state.worker.queue.queue import Queue
from redis_state.worker.schedules.model import BackfillOverlap, Schedule, check_id, check_moment
from redis_state.worker.schedules.submit import HOLD_MS, Submitter
from redis_state.worker.schedules.triggers import FIRST_MS, from_ms, to_ms
from redis_state.worker.schedules.views import (
    Occurrence,
    ScheduleView,
    schedule_view,
    schedule_views,
)

T = TypeVar("T")

_LONGEST_KEY = 200
_AT_ONCE = 50


class Schedules:
    """The schedules of a namespace. Part of a `TaskClient`, as ``client.schedules``.

    Every change is one atomic step, safe while the schedule fires: an occurrence that was decided
    on before is submitted as it was then. Workers follow within a second. One that loses to other
    processes' changes of the schedule for all of `call_timeout_s` fails with VersionConflict:
    repeat it. One whose schedule cannot be read fails with CorruptState: `delete` it.
    """

    def __init__(self, store: RedisStateStore, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._stored = ScheduleStore(store.base)
        self._submitter = Submitter(store, queue)
        self._recording = Together(self._record_triggers)
        self._settling = Together(self._settle_triggers)

    async def save(
        self, schedule: Schedule, *, paused: bool | None = None, expected: str | None = None
    ) -> ScheduleView:
        """Create a schedule, or change the one of its id; return it as it stands.

        The same schedule again changes nothing, so a deployment may save its schedules at each
        start. A new schedule, and one with other times, counts from now: earlier occurrences are
        not due. ``paused`` pauses or resumes it; None leaves that as it is. ``expected`` is the
        revision that it must have. Errors: VersionConflict, with the revision that it has;
        ScheduleUnknown if one is expected and there is none.
        """
        wanted = schedule.with_queue(self._queue.name)
        payloads, document = self._store.base.payloads, wanted.document()
        definition = payloads.document(document, "input", "description")

        async def attempt() -> str:
            found = await self._stored.load(schedule.schedule_id)
            if found is None:
                await self._create(wanted, definition, paused=bool(paused), expected=expected)
                return wanted.revision
            was = self._definition(found)
            pause = found.paused if paused is None else paused
            # Not as they are stored: a sealed definition is another text each time.
            unchanged = codec.encode(document) == codec.encode(was.document())
            unchanged = unchanged and pause == found.paused
            if unchanged or expected not in (None, was.revision):
                return was.revision
            restart = wanted.timing() != was.timing() or (found.paused and not pause)
            # What was decided on is submitted as it was.
            outbox = tuple(
                replace(one, job=was.job()) if one.job is None else one for one in found.outbox
            )
            fields = {"definition": definition, "paused": b"%d" % pause}
            fields |= outbox_field(payloads, outbox)
            await self._change(found, fields, restart=restart)
            return was.revision

        actual = await self._retry(attempt)
        if expected not in (None, actual):
            what = f"schedule {schedule.schedule_id!r}"
            raise VersionConflict(what, expected=expected or "", actual=actual)
        return await self._changed(schedule.schedule_id)

    async def get(self, schedule_id: str) -> ScheduleView:
        """Return a schedule, with the status of its last task. Errors: ScheduleUnknown."""
        found = await self._load(schedule_id)
        status: TaskStatus | None = None
        if found.last is not None:
            task = await self._store.tasks.look(found.last.session_id, found.last.task_id)
            status = None if task is None else task.status
        return self._view(status, found)

    async def list(self) -> list[ScheduleView]:
        """List all schedules in the order of their creation, without the status of their tasks.

        A schedule that cannot be read is left out, and set aside as unreadable.
        """
        return schedule_views(self._store, await self._stored.list())

    async def pause(self, schedule_id: str) -> ScheduleView:
        """Pause a schedule: no occurrence is due until it is resumed. Errors: ScheduleUnknown."""
        return await self._set_paused(schedule_id, paused=True)

    async def resume(self, schedule_id: str) -> ScheduleView:
        """Resume a schedule. Occurrences of the pause are not made up for: `backfill` does that.

        Errors: ScheduleUnknown.
        """
        return await self._set_paused(schedule_id, paused=False)

    async def delete(self, schedule_id: str) -> bool:
        """Delete a schedule; return whether there was one. Its tasks stay."""
        return await self._stored.delete(check_id(schedule_id))

    async def trigger(self, schedule_id: str, *, idempotency_key: str | None = None) -> Occurrence:
        """Submit a task of a schedule now, also of one that is paused; return it.

        The same ``idempotency_key`` is the same task: the last 100 keys are remembered with their
        sessions. If the caller dies once the schedule has the key, or is late, a worker submits it.
        Errors: ScheduleUnknown; InvalidField.
        """
        key = new_id() if idempotency_key is None else idempotency_key
        if not _is_key(key):
            problem = f"text of 1 to {_LONGEST_KEY} characters is needed"
            raise InvalidField("idempotency_key", problem)
        recorded = await self._recording(check_id(schedule_id), key)
        task = recorded.task
        if recorded.held_from_ms is not None:
            held_from_ms = recorded.held_from_ms
            # What is late, or not settled, a worker finds in the outbox and submits if need be.
            with behind_a_write(self._store.transport.address), suppress(LostRace):
                await self._submitter.submit([task], recorded.job, held_from_ms=held_from_ms)
                await self._settling(schedule_id, task)
        return Occurrence(None, task.session_id, task.task_id)

    async def backfill(
        self,
        schedule_id: str,
        since: datetime,
        until: datetime,
        *,
        dry_run: bool = False,
        limit: int = 1_000,
        limit_key: str | None = None,
        overlap: BackfillOverlap = "allow",
    ) -> Sequence[Occurrence]:
        """Submit the occurrences from ``since`` on and before ``until``, the oldest first.

        Limits of a ``limit_key`` hold for these tasks, in place of the schedule's own
        ``limit_key`` and ``in_turn``: so a long backfill leaves room for others. See
        `Queues.limit_key`. With ``overlap="enqueue"`` they run one at a time in their queue, those
        of one call the oldest first. Those of a later such call come behind them, also if they are
        older. Limits and rates that are set for keys do not hold for them. One that waits for a
        person or a time lets the next one run.

        One that has its task still is left alone, however it ended. So a call that was interrupted
        may be repeated: with ``overlap="enqueue"`` one that was not queued is queued first. Moments
        that are to come do not count. The schedule's own ``overlap`` does not apply, nor does
        ``on_busy``: each waits for its turn. ``dry_run`` only returns what would be done.

        Errors: ScheduleUnknown; InvalidField, also if there are more than ``limit`` occurrences;
        OutcomeUnknown if the server is away once some are submitted.
        """
        since_ms = to_ms(check_moment("since", since))
        until_ms = to_ms(check_moment("until", until))
        if since_ms < FIRST_MS:
            raise InvalidField("since", "must be 3 January of the year 1, or later")
        if until_ms < since_ms:
            raise InvalidField("until", "must not be before since")
        limits.count("limit", limit)
        definition = self._definition(await self._load(schedule_id))
        job = definition.backfill_job(limit_key, overlap)
        until_ms = min(until_ms, await self._now_ms() + 1)
        moments = definition.trigger.between(since_ms - 1, until_ms - 1)
        due = list(islice(moments, limit + 1))
        if len(due) > limit:
            raise InvalidField("until", f"there are more than {limit} occurrences: raise limit")
        in_order = overlap == "enqueue"
        plan = _Backfill(definition=definition, job=job, dry_run=dry_run, in_order=in_order)
        done: list[Occurrence] = []
        with behind_a_write(self._store.transport.address, written=plan.written):
            for first in range(0, len(due), _AT_ONCE):
                done += await self._backfill(plan, due[first : first + _AT_ONCE])
        return done

    async def _backfill(self, plan: _Backfill, due: Sequence[int]) -> Sequence[Occurrence]:
        of = plan.definition
        tasks = [PlannedTask(of.session_of(at), of.task_of(at), at) for at in due]
        there = await asyncio.gather(*map(self._submitter.is_there, tasks))
        missing = [task for task, is_there in zip(tasks, there, strict=True) if not is_there]
        if not plan.dry_run:
            await self._submit(plan, tasks if plan.in_order else missing, missing)
        state: Literal["submitted", "missing"] = "missing" if plan.dry_run else "submitted"
        return [
            Occurrence(from_ms(at), task.session_id, task.task_id, "exists" if known else state)
            for at, task, known in zip(due, tasks, there, strict=True)
        ]

    async def _submit(
        self, plan: _Backfill, tasks: Sequence[PlannedTask], missing: Sequence[PlannedTask]
    ) -> None:
        alone = 0
        if missing and not plan.written:
            # The first new one alone: if it fails, nothing was written.
            alone = tasks.index(missing[0]) + 1
            await self._submitter.submit(tasks[:alone], plan.job, in_order=plan.in_order)
            plan.written.append(missing[0])
        await self._submitter.submit(tasks[alone:], plan.job, in_order=plan.in_order)

    async def _create(
        self, schedule: Schedule, definition: bytes, *, paused: bool, expected: str | None
    ) -> None:
        if expected is not None:
            raise ScheduleUnknown(schedule.schedule_id)
        fields = {"definition": definition, "paused": b"%d" % paused}
        fields |= outbox_field(self._store.base.payloads, ())
        await self._stored.save(schedule.schedule_id, fields, expected=0, check_ms=0, restart=True)

    async def _change(
        self, found: StoredSchedule, fields: Mapping[str, bytes], *, restart: bool
    ) -> None:
        await self._stored.save(
            found.schedule_id, fields, expected=found.version, check_ms=0, restart=restart
        )

    async def _set_paused(self, schedule_id: str, *, paused: bool) -> ScheduleView:
        async def attempt() -> None:
            found = await self._load(schedule_id)
            if found.paused != paused:
                await self._change(found, {"paused": b"%d" % paused}, restart=not paused)

        await self._retry(attempt)
        return await self._changed(schedule_id)

    async def _changed(self, schedule_id: str) -> ScheduleView:
        with behind_a_write(self._store.transport.address):
            return await self.get(schedule_id)

    async def _record_triggers(self, schedule_id: str, keys: Sequence[str]) -> Sequence[_Triggered]:
        """Put tasks into the schedule's outbox, where a worker finds them if this caller dies."""

        async def attempt() -> Sequence[_Triggered]:
            found = await self._load(schedule_id)
            definition = self._definition(found)
            triggers, outbox = dict(found.triggers), found.outbox
            new = [key for key in dict.fromkeys(keys) if key not in triggers]
            fields: dict[str, bytes] = {}
            if new:
                session_id = definition.session_of(await self._now_ms())
                tasks = [PlannedTask(session_id, definition.triggered_task(key)) for key in new]
                triggers |= zip(new, tasks, strict=True)
                outbox = (*outbox, PlannedTasks(tuple(tasks)))
                fields = outbox_field(self._store.base.payloads, outbox)
                fields |= triggers_field(triggers)
            waiting = {task: one.job for one in outbox for task in one.tasks}
            held_from_ms: int | None = None
            if any(triggers[key] in waiting for key in keys):
                _, held_from_ms = await self._stored.save(
                    schedule_id, fields, expected=found.version, check_ms=HOLD_MS, sooner=True
                )
            return [
                _Triggered(task, waiting[task] or definition.job(), held_from_ms)
                if task in waiting
                else _Triggered(task, {}, None)
                for task in map(triggers.__getitem__, keys)
            ]

        return await self._retry(attempt)

    async def _settle_triggers(
        self, schedule_id: str, tasks: Sequence[PlannedTask]
    ) -> Sequence[None]:
        """Take tasks that were submitted out of the outbox."""

        async def attempt() -> Sequence[None]:
            found = await self._stored.load(schedule_id)
            outbox = () if found is None else without(found.outbox, tasks)
            if found is not None and outbox != found.outbox:
                fields = outbox_field(self._store.base.payloads, outbox)
                await self._stored.save(schedule_id, fields, expected=found.version)
            return [None] * len(tasks)

        return await self._retry(attempt)

    def _read(self, found: StoredSchedule) -> Schedule:
        return Schedule.read(found.definition, decode=self._store.base.payloads.as_object)

    def _view(self, status: TaskStatus | None, found: StoredSchedule) -> ScheduleView:
        return schedule_view(self._read(found), found, status)

    def _definition(self, found: StoredSchedule) -> Schedule:
        """Read a schedule's definition. Errors: CorruptState."""
        try:
            return self._read(found)
        except (ValueError, KeyError, TypeError) as error:
            what = f"schedule {found.schedule_id!r}"
            raise CorruptState(what, f"no definition: {type(error).__name__}") from None

    async def _load(self, schedule_id: str) -> StoredSchedule:
        found = await self._stored.load(check_id(schedule_id))
        if found is None:
            raise ScheduleUnknown(schedule_id)
        return found

    async def _now_ms(self) -> int:
        return ms_of(await self._store.transport.commands.time())

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await retry_on_conflict(attempt, timeout_s=self._store.settings.call_timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backfill:
    """What a call of `Schedules.backfill` submits, and the first that it has ``written``."""

    definition: Schedule
    job: Mapping[str, Any] = field(repr=False)
    dry_run: bool
    in_order: bool
    written: list[PlannedTask] = field(default_factory=list[PlannedTask])


@dataclass(frozen=True, slots=True)
class _Triggered:
    """A triggered task, what it is made of, and since when its caller may submit it: None if it
    was submitted.
    """

    task: PlannedTask
    job: Mapping[str, Any] = field(repr=False)
    held_from_ms: int | None


def _is_key(key: object) -> bool:
    return isinstance(key, str) and 0 < len(key) <= _LONGEST_KEY
