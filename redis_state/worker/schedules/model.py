"""A schedule: which task it submits, when, and what happens to occurrences that were missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any, Literal, Self, get_args

from redis_state import limits
from redis_state.errors import InvalidField
from redis_state.models.attributes import Attributes, AttributeValue, check_attributes
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.worker.queue.limits import backfill_key, flow_key
from redis_state.worker.schedules.triggers import (
    Interval,
    Trigger,
    from_ms,
    read_cron,
    read_zone,
    to_ms,
)

Missed = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip"]
ScheduledOnBusy = Literal["enqueue", "interrupt", "replace"]
BackfillOverlap = Literal["allow", "enqueue"]

MOST_MISSED = 1_000
_LONGEST_ID = 200
_SHORTEST = timedelta(seconds=1)
_LONGEST = timedelta(days=3650)
# Workers look once a second, and a busy one later.
_SHORTEST_GRACE = timedelta(seconds=10)
_LONGEST_GRACE = timedelta(days=1)
# Earlier versions knew none of these. Those that are not given are not written: the revision stays.
_OPTIONAL = ("attributes", "limit_key", "in_turn", "on_busy")
_PLACES = ("schedule", "date", "time", "at")
# What decides when it is due. A change of it begins a new count.
_TIMING = ("cron", "timezone", "every_ms", "anchor_ms", "start_ms", "end_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What to submit, and when. Saved under its id by `Schedules.save`.

    - ``session_id`` is the session of the tasks. It may name the occurrence: ``{date}`` and
      ``{time}`` by the clocks of ``timezone`` (2026-11-24 and 0930), ``{at}`` in UTC
      (20261124T083000Z), ``{schedule}``. Literal braces are doubled.
    - ``cron`` has five fields, or six with seconds first, and is read in ``timezone``, an IANA
      name. Or ``every`` is an interval, from a second on, counted from ``anchor``, else from 1970.
    - ``start`` is the first moment that counts, ``end`` the first that does not any more.
    - ``missed``: an occurrence that no worker saw within ``grace`` is missed. ``skip`` leaves it
      out. ``latest`` submits the newest, unless a later one is in time. ``all`` submits the
      ``max_missed`` newest, the oldest first.
    - ``overlap``: ``skip`` leaves an occurrence out while the task of the one before is unfinished.
    - ``queue``, else that of the client that saves it.
    - ``attributes`` are what `TaskClient.find` finds the tasks by. Limits of their ``limit_key``
      hold for them. With ``in_turn`` the tasks of a session run one at a time in their queue.
      ``on_busy`` implies that: it is ``enqueue``, ``interrupt`` or ``replace``, see
      `TaskClient.submit`.

    Errors: InvalidField names the field.
    """

    schedule_id: str
    handler: str
    session_id: str
    input: Any = field(default=None, repr=False)
    cron: str | None = None
    timezone: str = "UTC"
    every: timedelta | None = None
    anchor: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None
    queue: str | None = None
    priority: int = 0
    description: str | None = None
    missed: Missed = "skip"
    max_missed: int = 100
    grace: timedelta = timedelta(minutes=1)
    overlap: Overlap = "allow"
    attributes: Attributes = field(default_factory=dict[str, AttributeValue], hash=False)
    limit_key: str | None = None
    in_turn: bool = False
    on_busy: ScheduledOnBusy | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_id(self.schedule_id)
        for name in ("handler", "session_id"):
            limits.name(name, getattr(self, name))
        limits.name_or("queue", self.queue, "")
        if self.description is not None and not _is_text(self.description):
            raise InvalidField("description", "text is needed")
        if type(self.priority) is not int:
            raise InvalidField("priority", "must be a whole number")
        if self.missed not in get_args(Missed):
            raise InvalidField("missed", "is skip, latest or all")
        if self.overlap not in get_args(Overlap):
            raise InvalidField("overlap", "is allow or skip")
        if limits.count("max_missed", self.max_missed) > MOST_MISSED:
            raise InvalidField("max_missed", f"must be <= {MOST_MISSED}")
        _length("grace", self.grace, _SHORTEST_GRACE, _LONGEST_GRACE)
        self._check_waiting()
        self._check_times()
        self.session_of(0)
        # It is read here for its errors.
        _ = self.trigger

    def _check_waiting(self) -> None:
        check_attributes("attributes", self.attributes)
        if type(self.in_turn) is not bool:
            raise InvalidField("in_turn", "True or False is needed")
        if self.on_busy is not None and self.on_busy not in get_args(ScheduledOnBusy):
            problem = "is enqueue, interrupt or replace; overlap='skip' leaves an occurrence out"
            raise InvalidField("on_busy", problem)
        is_in_turn = self.in_turn or self.on_busy is not None
        flow_key(self.limit_key, in_turn=self.session_id if is_in_turn else None)

    def _check_times(self) -> None:
        if (self.cron is None) == (self.every is None):
            raise InvalidField("cron", "one of cron and every is needed")
        for name in ("anchor", "start", "end"):
            moment = getattr(self, name)
            if moment is not None:
                check_moment(name, moment)
        if self.anchor is not None and self.every is None:
            raise InvalidField("anchor", "only an interval has one")
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise InvalidField("end", "must be later than start")
        if self.every is not None:
            _length("every", self.every, _SHORTEST, _LONGEST)

    @property
    def trigger(self) -> Trigger:
        """When it is due. Errors: InvalidField."""
        zone = read_zone("timezone", self.timezone)
        start_ms = None if self.start is None else to_ms(self.start)
        end_ms = None if self.end is None else to_ms(self.end)
        if self.every is not None:
            anchor_ms = 0 if self.anchor is None else to_ms(self.anchor)
            every_ms = self.every // timedelta(milliseconds=1)
            return Trigger(Interval(every_ms, anchor_ms), start_ms, end_ms)
        return Trigger(read_cron("cron", self.cron, zone), start_ms, end_ms)

    @property
    def grace_ms(self) -> int:
        """How late an occurrence may be before it is missed."""
        return self.grace // timedelta(milliseconds=1)

    @property
    def revision(self) -> str:
        """What the definition says, as a digest: equal for equal definitions."""
        return codec.fingerprint(self.document())[:16]

    def session_of(self, at_ms: int) -> str:
        """Return the session of an occurrence. Errors: InvalidField."""
        local = from_ms(at_ms).astimezone(read_zone("timezone", self.timezone))
        places = {
            "schedule": self.schedule_id,
            "date": f"{local:%Y-%m-%d}",
            "time": f"{local:%H%M}",
            "at": stamp(at_ms),
        }
        written: list[str] = []
        try:
            for literal, place, form, conversion in Formatter().parse(self.session_id):
                written.append(literal)
                # A format or a conversion makes it a place that is not known.
                written.append("" if place is None else places[place + (form or conversion or "")])
        except (ValueError, KeyError):
            names = ", ".join(f"{{{name}}}" for name in _PLACES)
            raise InvalidField(
                "session_id", f"it may have {names}; other braces are doubled"
            ) from None
        return "".join(written)

    def task_of(self, at_ms: int) -> str:
        """Return the id of an occurrence's task: every worker submits it under this id."""
        return f"{self.schedule_id}@{stamp(at_ms)}"

    def triggered_task(self, idempotency_key: str) -> str:
        """Return the id of the task that a call of `Schedules.trigger` submits.

        The last sign @ stands before ``now:``, whatever ids and keys hold: no two have one id.
        """
        escaped = idempotency_key.replace("%", "%25").replace("@", "%40")
        return f"{self.schedule_id}@now:{escaped}"

    def job(self) -> dict[str, Any]:
        """Return what a task of it is made of. What was not given has no entry."""
        given = {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name)}
        return given | {
            "handler": self.handler,
            "input": self.input,
            "queue": self.queue,
            "priority": self.priority,
            "description": self.description,
        }

    def backfill_job(
        self, limit_key: str | None = None, overlap: BackfillOverlap = "allow"
    ) -> dict[str, Any]:
        """Return what a task of a backfill is made of: each waits for its turn, if it has one.

        A ``limit_key`` limits it in place of what the schedule gives. With ``enqueue`` it is one of
        the schedule's backfills. Errors: InvalidField.
        """
        if overlap not in get_args(BackfillOverlap):
            raise InvalidField("overlap", "is allow or enqueue")
        if overlap == "enqueue" and limit_key is not None:
            raise InvalidField("limit_key", "cannot be given with overlap='enqueue'")
        job = self.job()
        was_busy = job.pop("on_busy", None)
        if overlap == "enqueue":
            job = {name: job[name] for name in job.keys() - {"in_turn", "limit_key"}}
            return job | {"written_key": backfill_key(self.schedule_id)}
        if limit_key is not None:
            flow_key(limit_key)
            job.pop("in_turn", None)
            return job | {"limit_key": limit_key}
        return job | ({"in_turn": True} if was_busy else {})

    def with_queue(self, queue: str) -> Self:
        """Return it with a queue, if it names none."""
        return self if self.queue is not None else replace(self, queue=queue)

    def timing(self) -> dict[str, Any]:
        """Return what decides when it is due."""
        document = self.document()
        return {name: document[name] for name in _TIMING}

    def document(self) -> dict[str, Any]:
        """Write it as it is stored."""
        every = self.every
        return self.job() | {
            "schedule_id": self.schedule_id,
            "session_id": self.session_id,
            "cron": None if self.cron is None else " ".join(self.cron.split()),
            "timezone": self.timezone,
            "every_ms": None if every is None else every // timedelta(milliseconds=1),
            "anchor_ms": None if self.anchor is None else to_ms(self.anchor),
            "start_ms": None if self.start is None else to_ms(self.start),
            "end_ms": None if self.end is None else to_ms(self.end),
            "missed": self.missed,
            "max_missed": self.max_missed,
            "grace_ms": self.grace_ms,
            "overlap": self.overlap,
        }

    @classmethod
    def read(cls, data: bytes, *, decode: Callable[[bytes], dict[str, Any]] = as_object) -> Self:
        """Read what `document` wrote. Errors: ValueError, KeyError, TypeError."""
        stored = decode(data)
        moments: dict[str, Any] = {
            name: _moment(stored[f"{name}_ms"]) for name in ("anchor", "start", "end")
        }
        every_ms = stored["every_ms"]
        same = ("schedule_id", "handler", "session_id", "input", "cron", "timezone")
        more = ("priority", "description", "missed", "max_missed", "overlap")
        optional: dict[str, Any] = {name: stored[name] for name in _OPTIONAL if name in stored}
        return cls(
            **{name: stored[name] for name in (*same, *more)},
            **moments,
            **optional,
            # An earlier version took an empty name, and meant the client's queue.
            queue=stored["queue"] or None,
            every=None if every_ms is None else timedelta(milliseconds=every_ms),
            grace=timedelta(milliseconds=stored["grace_ms"]),
        )


def check_id(schedule_id: object) -> str:
    """Check a schedule's id. Errors: InvalidField."""
    if not isinstance(schedule_id, str) or not 0 < len(schedule_id) <= _LONGEST_ID:
        raise InvalidField("schedule_id", f"text of 1 to {_LONGEST_ID} characters is needed")
    return schedule_id


def stamp(at_ms: int) -> str:
    """Write a moment in UTC as part of an id, with its milliseconds if it has any."""
    moment = from_ms(at_ms)
    part = f".{at_ms % 1000:03d}" if at_ms % 1000 else ""
    return f"{moment:%Y%m%dT%H%M%S}{part}Z"


def occurrence_of(task_id: str) -> datetime | None:
    """Return for which moment a schedule has submitted a task; None for any other task."""
    _, at, written = task_id.rpartition("@")
    for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S.%fZ"):
        try:
            return datetime.strptime(written, form).replace(tzinfo=UTC) if at else None
        except ValueError:
            continue
    return None


def check_moment(name: str, moment: object) -> datetime:
    """Check a moment. Errors: InvalidField without a time zone, which it needs."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise InvalidField(name, "a datetime with a time zone is needed")
    try:
        moment.astimezone(UTC)
    except OverflowError:
        # It is stored in UTC.
        raise InvalidField(name, "is not in the years 1 to 9999 of UTC") from None
    return moment


def _moment(at_ms: int | None) -> datetime | None:
    """Read a moment. Errors: ValueError for one that no datetime is, as older versions stored."""
    try:
        return None if at_ms is None else from_ms(at_ms)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _length(name: str, value: object, least: timedelta, most: timedelta) -> None:
    if not isinstance(value, timedelta) or not least <= value <= most:
        raise InvalidField(name, f"must be a timedelta from {least} to {most}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)
