"""Queues, rates and schedules over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from redis_state import limits
from redis_state.documents import rate_document
from redis_state.errors import ScheduleUnknown
from redis_state.http_client.documents import (
    read_occurrence,
    read_queue,
    read_queue_key,
    read_rate,
    read_rate_use,
    read_schedule,
)
from redis_state.http_client.requests.caller import Ask, GatewayCaller, key_of, not_readable
from redis_state.worker import (
    Occurrence,
    QueueInfo,
    QueueKeyInfo,
    Rate,
    RateUse,
    Schedule,
    ScheduleView,
)
from redis_state.worker.queue.limits import KEEP, Keep, named_key, settings_of
from redis_state.worker.queue.rates import checked_rate
from redis_state.worker.schedules.model import BackfillOverlap, check_id, check_moment


class HttpQueues:
    """The queues of a gateway's namespace. See `Queues`. The caller needs a right over all."""

    def __init__(self, caller: GatewayCaller) -> None:
        self._caller = caller

    async def get(self, name: str) -> QueueInfo:
        """Return what waits in a queue, what runs, and its limits. An unknown one is empty."""
        ask = Ask("GET", _queue(name), missing=not_readable)
        return read_queue(await self._caller.call(ask))

    async def list(self) -> Sequence[QueueInfo]:
        """List the queues that live workers serve, the default one, and those that have tasks."""
        found = await self._caller.call(Ask("GET", ("queues",)))
        return [read_queue(each) for each in found["queues"]]

    async def keys(self, name: str, *, limit: int = 100) -> Sequence[QueueKeyInfo]:
        """List who waits in a queue and who runs, by key. See `Queues.keys`."""
        query = [("limit", str(limits.count("limit", limit)))]
        ask = Ask("GET", (*_queue(name), "keys"), query, missing=not_readable)
        return [read_queue_key(each) for each in (await self._caller.call(ask))["keys"]]

    async def pause(self, name: str) -> None:
        """Begin no more tasks of a queue, until `resume`."""
        await self._change(name, "pause")

    async def resume(self, name: str) -> None:
        """Begin tasks of a queue again."""
        await self._change(name, "resume")

    async def limit(
        self,
        name: str,
        *,
        running: int | Keep | None = KEEP,
        per_key: int | Keep | None = KEEP,
        rate: Rate | Keep | None = KEEP,
    ) -> None:
        """Set how many tasks of a queue run, how many of one key, and how often those may start.

        None takes a limit away; what is not given stays. See `Queues.limit`.
        """
        settings_of(running=running, per_key=per_key, rate=rate)
        body = _limits(running=running, per_key=per_key, rate=rate)
        await self._change(name, "limit", body=body)

    async def limit_key(
        self,
        name: str,
        limit_key: str,
        *,
        running: int | Keep | None = KEEP,
        rate: Rate | Keep | None = KEEP,
    ) -> None:
        """Set what holds for one key in place of the queue's limits. See `Queues.limit_key`."""
        named_key(limit_key)
        settings_of(running=running, per_key=KEEP, rate=rate)
        body = _limits(running=running, rate=rate)
        await self._change(name, "keys", limit_key, "limit", body=body)

    async def _change(self, name: str, *parts: str, body: Mapping[str, Any] | None = None) -> None:
        """Change a queue, which is always there."""
        ask = Ask("POST", (*_queue(name), *parts), body=body or {})
        await self._caller.call(ask)


class HttpRates:
    """The rates that were set in a gateway's namespace. See `Rates`. A change needs ``admin``."""

    def __init__(self, caller: GatewayCaller) -> None:
        self._caller = caller

    async def set(self, name: str, rate: Rate | None) -> None:
        """Set a rate; None takes it away. See `Rates.set`."""
        named_key(name, field="name")
        body = {"rate": _limit(checked_rate(rate))}
        await self._caller.call(Ask("POST", ("rates", name), body=body))

    async def list(self) -> Mapping[str, Rate]:
        """List the rates that were set, by their names."""
        found = await self._caller.call(Ask("GET", ("rates",)))
        return {each["name"]: read_rate(each) for each in found["rates"]}

    async def in_use(self) -> Sequence[RateUse]:
        """List the rates that are used now. See `Rates.in_use`. An older gateway lists none."""
        found = await self._caller.call(Ask("GET", ("rates",)))
        return [read_rate_use(each) for each in found.get("in_use", ())]


class HttpSchedules:
    """The schedules of a gateway's namespace. See `Schedules`. The caller needs a right over all.

    No answer has the input of a schedule's tasks. So a schedule that was read is not one to save.
    """

    def __init__(self, caller: GatewayCaller) -> None:
        self._caller = caller

    async def save(
        self, schedule: Schedule, *, paused: bool | None = None, expected: str | None = None
    ) -> ScheduleView:
        """Create a schedule, or change the one of its id. See `Schedules.save`.

        With ``expected`` it is sent once: a repetition could not know its own change.
        """
        every = schedule.every
        names = ("schedule_id", "handler", "session_id", "input", "cron", "timezone", "queue")
        more = ("priority", "description", "missed", "max_missed", "overlap")
        moments = {name: getattr(schedule, name) for name in ("anchor", "start", "end")}
        body: dict[str, Any] = {name: getattr(schedule, name) for name in (*names, *more)}
        # An older gateway takes none of these, and refuses a name that it does not know.
        optional = {name: getattr(schedule, name) for name in ("limit_key", "in_turn", "on_busy")}
        optional["attributes"] = dict(schedule.attributes)
        body |= {name: value for name, value in optional.items() if value}
        body |= {name: None if at is None else at.isoformat() for name, at in moments.items()}
        body |= {
            "every_s": None if every is None else every.total_seconds(),
            "grace_s": schedule.grace.total_seconds(),
            "paused": paused,
            "expected": expected,
        }
        ask = Ask(
            "POST",
            ("schedules",),
            body=body,
            repeatable=expected is None,
            missing=lambda: ScheduleUnknown(schedule.schedule_id),
        )
        return read_schedule(await self._caller.call(ask))

    async def get(self, schedule_id: str) -> ScheduleView:
        """Return a schedule, with the status of its last task. Errors: ScheduleUnknown."""
        ask = Ask("GET", _schedule(schedule_id), missing=lambda: ScheduleUnknown(schedule_id))
        return read_schedule(await self._caller.call(ask))

    async def list(self) -> list[ScheduleView]:
        """List all schedules in the order of their creation, without the status of their tasks."""
        found = await self._caller.call(Ask("GET", ("schedules",)))
        return [read_schedule(each) for each in found["schedules"]]

    async def pause(self, schedule_id: str) -> ScheduleView:
        """Pause a schedule. Errors: ScheduleUnknown."""
        return read_schedule(await self._do(schedule_id, "pause"))

    async def resume(self, schedule_id: str) -> ScheduleView:
        """Resume a schedule. Errors: ScheduleUnknown."""
        return read_schedule(await self._do(schedule_id, "resume"))

    async def delete(self, schedule_id: str) -> bool:
        """Delete a schedule; return whether there was one. Its tasks stay. It is sent once."""
        ask = Ask("DELETE", _schedule(schedule_id), repeatable=False)
        return bool((await self._caller.call(ask))["deleted"])

    async def trigger(self, schedule_id: str, *, idempotency_key: str | None = None) -> Occurrence:
        """Submit a task of a schedule now. See `Schedules.trigger`."""
        key = key_of("idempotency_key", idempotency_key)
        return read_occurrence(await self._do(schedule_id, "trigger", key))

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
        """Submit occurrences of a time that have no task. See `Schedules.backfill`.

        1,000 of them at most. One call has the client's ``timeout_s``: repeat it after that.
        """
        body: dict[str, Any] = {
            "since": check_moment("since", since).isoformat(),
            "until": check_moment("until", until).isoformat(),
            "dry_run": dry_run,
            "limit": limits.count("limit", limit),
        }
        if limit_key is not None:
            named_key(limit_key)
            body["limit_key"] = limit_key
        if overlap != "allow":
            body["overlap"] = overlap
        found = await self._call(schedule_id, "backfill", body)
        return [read_occurrence(each) for each in found["occurrences"]]

    async def _do(self, schedule_id: str, name: str, key: str | None = None) -> Any:
        return await self._call(schedule_id, name, {}, key)

    async def _call(
        self, schedule_id: str, name: str, body: Mapping[str, Any], key: str | None = None
    ) -> Any:
        return await self._caller.call(
            Ask(
                "POST",
                (*_schedule(schedule_id), name),
                body=body,
                key=key,
                missing=lambda: ScheduleUnknown(schedule_id),
            )
        )


def _queue(name: str) -> tuple[str, str]:
    return "queues", limits.name("queue", name)


def _limits(**given: int | Rate | Keep | None) -> dict[str, Any]:
    return {name: _limit(value) for name, value in given.items() if value is not KEEP}


def _limit(value: int | Rate | Keep | None) -> Any:
    return rate_document(value) if isinstance(value, Rate) else value


def _schedule(schedule_id: str) -> tuple[str, str]:
    return "schedules", check_id(schedule_id)
