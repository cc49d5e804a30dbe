"""Schedules as they are stored: a record each, and a list of when a worker must look at them.

Record and list are in one slot and change in one step. All schedules of a namespace share it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redis_state.errors import CorruptState, VersionConflict
from redis_state.models.version import Version
from redis_state.primitives.record import Place, Stored, new_write_id
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.scripts import ReplyCode, raw
from redis_state.serialization import codec
from redis_state.serialization.payloads import Parts, Payloads
from redis_state.stores.base import Base, ms
from redis_state.transport.key_groups import ScheduleKeys

MOST_TRIGGERS = 100
_PAYLOADS = ("input", "description")


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task to submit: where, under which id, and for which moment, if for one."""

    session_id: str
    task_id: str
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedTasks:
    """Tasks to submit, and what they are made of: None for what the definition says."""

    tasks: tuple[PlannedTask, ...]
    job: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule's record.

    Occurrences up to ``after_ms`` are settled: submitted, left out, or from before it was there.
    ``outbox`` are the tasks that were decided on and perhaps not submitted yet. ``last`` is the
    newest occurrence that was submitted, ``skipped`` the newest that was left out, and why.
    ``triggers`` are the tasks of the last calls of `trigger`, by their keys.
    """

    schedule_id: str
    version: Version
    order: int
    definition: bytes = field(repr=False)
    paused: bool
    after_ms: int
    outbox: tuple[PlannedTasks, ...] = ()
    last: PlannedTask | None = None
    skipped: tuple[int, str] | None = None
    fired: int = 0
    triggers: Mapping[str, PlannedTask] = field(default_factory=dict[str, PlannedTask])


class ScheduleStore:
    """Save, load, list and delete schedules. Writes are compare-and-set."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._ttl_ms = ms(base.settings.schedules_ttl)
        # Names are entries: the list is in one slot, and so in one part.
        self.due: WatchList = WatchList(
            base.scripts, base.keys, key_of=lambda _: base.keys.schedules_due(), shards=1
        )

    async def save(
        self,
        schedule_id: str,
        fields: Mapping[str, bytes],
        *,
        expected: int,
        check_ms: int | None = None,
        sooner: bool = False,
        restart: bool = False,
    ) -> tuple[Version, int]:
        """Save fields in one step; return the version and the server's time in ms.

        ``expected`` is the version that it must have, 0 for none. A worker looks at it in
        ``check_ms``; ``sooner`` lets an earlier time stand. After a ``restart`` no occurrence up to
        now is due any more. Errors: VersionConflict; nothing is written then.
        """
        write = new_write_id()
        reply = await self._base.scripts.save_schedule(
            self._keys(schedule_id),
            fields,
            write=write,
            expected=expected,
            ttl_ms=self._ttl_ms,
            schedule_id=schedule_id,
            check_ms=check_ms,
            sooner=sooner,
            restart=restart,
        )
        if reply.word is ReplyCode.STALE:
            what = f"schedule {schedule_id!r}"
            raise VersionConflict(what, expected=expected, actual=reply.version)
        version, now_ms = reply.facts
        return Version(version, write), int(now_ms)

    async def load(self, schedule_id: str) -> StoredSchedule | None:
        """Return a schedule, or None if there is none.

        Errors: CorruptState for one that cannot be read. It is set aside, too.
        """
        key = self._base.keys.schedule(schedule_id)
        flat = self._base.fetch(key)
        found = await self._base.read_record(
            "schedules",
            f"schedule {schedule_id}",
            flat,
            lambda record: self._read(schedule_id, record),
        )
        there: list[bytes] = await self._base.scripts.read(flat, key, command="HGETALL")
        if found is None and there:
            # None would say that it was deleted, and no worker would look at it any more.
            raise CorruptState(key, "the schedule cannot be read")
        return found

    async def list(self) -> list[StoredSchedule]:
        """Return all schedules in the order of their first save."""
        keys = self._base.keys
        return await self._base.list_ordered(
            "schedules", "schedule", keys.schedules(), key_of=keys.schedule, read=self._read
        )

    async def page(
        self, *, limit: int | None, after: str | None
    ) -> tuple[Sequence[StoredSchedule], str | None]:
        """Return schedules in the order of their ids; and the last one's id if others follow.

        The records of the page alone are read: those of the ids behind ``after``.
        """
        base, keys = self._base, self._base.keys
        listed = sorted(await base.records.members(keys.schedules()))
        rest = [name for name in listed if after is None or name > after]
        names = rest[:limit]
        pending = [("schedules", name, base.fetch(keys.schedule(name))) for name in names]
        found = await base.read_ordered("schedule", pending, self._read)
        by_id = sorted(found, key=lambda one: one.schedule_id)
        return by_id, names[-1] if len(names) < len(rest) else None

    async def delete(self, schedule_id: str) -> bool:
        """Delete a schedule; return whether there was one. A look finds nothing, and is the last.

        Once per call: a repetition does not delete one that was saved since.
        """
        keys = self._keys(schedule_id)
        place = Place(keys.schedules, schedule_id)
        return await self._base.records.delete(keys.schedule, place=place)

    def _read(self, schedule_id: str, record: Stored) -> StoredSchedule:
        return _read(self._base.payloads, schedule_id, record)

    def _keys(self, schedule_id: str) -> ScheduleKeys:
        keys = self._base.keys
        return ScheduleKeys(keys.schedule(schedule_id), keys.schedules(), keys.schedules_due())


def entry_of(schedule_id: str) -> bytes:
    """Return a schedule's entry in the list of what is due."""
    return raw(schedule_id)


def id_of(entry: bytes) -> str:
    """Return the id of an entry in the list of what is due."""
    return entry.decode("utf-8", "surrogatepass")


def outbox_field(payloads: Payloads, outbox: tuple[PlannedTasks, ...]) -> dict[str, bytes]:
    """Write the tasks that are to be submitted."""
    parts = payloads.parts()
    written = [
        {"job": sealed_job(parts, one.job), "tasks": [_flat(task) for task in one.tasks]}
        for one in outbox
    ]
    return {"outbox": parts.mark(codec.encode(written))}


def sealed_job(parts: Parts, job: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return what tasks are made of, with its payloads as they stand in a document."""
    if job is None:
        return None
    return {**job, **{name: parts(job[name], field=name) for name in _PAYLOADS if name in job}}


def without(
    outbox: tuple[PlannedTasks, ...], tasks: Collection[PlannedTask]
) -> tuple[PlannedTasks, ...]:
    """Take tasks out of those that are to be submitted."""
    left = (replace(one, tasks=tuple(t for t in one.tasks if t not in tasks)) for one in outbox)
    return tuple(one for one in left if one.tasks)


def planned_field(name: str, task: PlannedTask) -> dict[str, bytes]:
    """Write one task under a field's name."""
    return {name: codec.encode(_flat(task))}


def triggers_field(triggers: Mapping[str, PlannedTask]) -> dict[str, bytes]:
    """Write the last triggers, the newest of them if they are many."""
    newest = list(triggers.items())[-MOST_TRIGGERS:]
    return {"triggers": codec.encode([[key, _flat(task)] for key, task in newest])}


def _flat(task: PlannedTask) -> list[Any]:
    return [task.session_id, task.task_id, task.at_ms]


def _read(payloads: Payloads, schedule_id: str, record: Stored) -> StoredSchedule:
    fields = record.fields
    outbox = payloads.decode(fields.get("outbox", b"[]"))
    last, skipped = codec.decode(fields.get("last", b"null")), fields.get("skipped")
    triggers = codec.decode(fields.get("triggers", b"[]"))
    return StoredSchedule(
        schedule_id=schedule_id,
        version=record.version,
        order=record.order,
        definition=fields["definition"],
        paused=fields["paused"] == b"1",
        after_ms=int(fields["after"]),
        outbox=tuple(
            PlannedTasks(tuple(PlannedTask(*task) for task in one["tasks"]), one["job"])
            for one in outbox
        ),
        last=None if last is None else PlannedTask(*last),
        skipped=None if skipped is None else tuple(codec.decode(skipped)),
        fired=int(fields.get("fired", 0)),
        triggers={key: PlannedTask(*task) for key, task in triggers},
    )
