"""Schedules: list, save, pause, resume, trigger and delete them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from redis_state.documents import occurrence_document, schedule_document
from redis_state.errors import InvalidField
from redis_state.gateway.answers import answer, forbidden
from redis_state.gateway.auth.principal import Right
from redis_state.gateway.calls import ApiCall, Operation, Over
from redis_state.gateway.requests.bodies import CANCELS, BackfillBody, NoBody, ScheduleBody
from redis_state.gateway.requests.fields import seconds, utc
from redis_state.gateway.requests.queries import PartQuery
from redis_state.gateway.results import (
    DeletedResult,
    OccurrenceResult,
    OccurrencesResult,
    ScheduleResult,
    SchedulesResult,
)
from redis_state.worker import Schedule
from redis_state.worker.schedules.views import list_schedule_page

_LISTING = "schedules"
_SCHEDULE = "/v1/schedules/{schedule}"


async def list_schedules(call: ApiCall) -> Response:
    """List all schedules in the order of their creation, or a page of them in that of their ids."""
    query = call.query_as(PartQuery)
    last: str | None = None
    if query.limit is None and query.after is None:
        listed = await call.client.schedules.list()
    else:
        listed, last = await list_schedule_page(
            call.store, limit=query.limit, after=query.place(_LISTING)
        )
    schedules = [schedule_document(each) for each in listed]
    return answer({"schedules": schedules, "cursor": query.cursor(_LISTING, last)})


async def save_schedule(call: ApiCall) -> Response:
    """Create a schedule, or change the one of its id."""
    body = call.given(ScheduleBody)
    schedule = Schedule(
        schedule_id=body.schedule_id,
        handler=body.handler,
        session_id=body.session_id,
        input=body.input,
        cron=body.cron,
        timezone=body.timezone,
        every=seconds(body.every_s),
        anchor=utc(body.anchor),
        start=utc(body.start),
        end=utc(body.end),
        queue=body.queue,
        priority=body.priority,
        description=body.description,
        missed=body.missed,
        max_missed=body.max_missed,
        grace=timedelta(seconds=body.grace_s),
        overlap=body.overlap,
        attributes=body.attributes,
        limit_key=body.limit_key,
        in_turn=body.in_turn,
        on_busy=body.on_busy,
    )
    view = await call.client.schedules.save(schedule, paused=body.paused, expected=body.expected)
    return answer(schedule_document(view))


async def read_schedule(call: ApiCall) -> Response:
    """Read a schedule, with the status of its last task."""
    return answer(schedule_document(await call.client.schedules.get(_id(call))))


async def delete_schedule(call: ApiCall) -> Response:
    """Delete a schedule. Its tasks stay."""
    return answer({"deleted": await call.client.schedules.delete(_id(call))})


async def pause_schedule(call: ApiCall) -> Response:
    """Pause a schedule: no occurrence is due until it is resumed."""
    return answer(schedule_document(await call.client.schedules.pause(_id(call))))


async def resume_schedule(call: ApiCall) -> Response:
    """Resume a schedule."""
    return answer(schedule_document(await call.client.schedules.resume(_id(call))))


async def trigger_schedule(call: ApiCall) -> Response:
    """Submit a task of a schedule now."""
    found = await call.client.schedules.get(_id(call))
    # The session may differ from occurrence to occurrence.
    if found.schedule.on_busy in CANCELS and not call.principal.everywhere(Right.STEER):
        raise forbidden("the caller may not cancel other tasks, as this schedule's do")
    made = await call.client.schedules.trigger(_id(call), idempotency_key=call.own_key())
    return answer({"at": None, "session_id": made.session_id, "task_id": made.task_id}, 201)


async def backfill_schedule(call: ApiCall) -> Response:
    """Submit the occurrences of a time that have no task. A repeated call changes nothing more."""
    body = call.given(BackfillBody)
    found = await call.client.schedules.backfill(
        _id(call),
        _moment("since", body.since),
        _moment("until", body.until),
        dry_run=body.dry_run,
        limit=body.limit,
        limit_key=body.limit_key,
        overlap=body.overlap,
    )
    return answer({"occurrences": [occurrence_document(each) for each in found]})


def _moment(field: str, moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise InvalidField(field, "is out of range") from None


def _id(call: ApiCall) -> str:
    return call.path["schedule"]


def _change(
    name: str, endpoint: Any, summary: str, result: Any, *, body: Any = NoBody, **more: Any
) -> Operation:
    return Operation(
        "POST",
        f"{_SCHEDULE}/{name}",
        endpoint,
        summary,
        over=Over.EVERYTHING,
        body=body,
        result=result,
        answers=(403, 404, 409, 413),
        **more,
    )


OPERATIONS = (
    Operation(
        "GET",
        "/v1/schedules",
        list_schedules,
        "List schedules",
        over=Over.EVERYTHING,
        query=PartQuery,
        result=SchedulesResult,
        answers=(400, 403),
    ),
    Operation(
        "POST",
        "/v1/schedules",
        save_schedule,
        "Save a schedule",
        right=Right.ADMIN,
        over=Over.EVERYTHING,
        body=ScheduleBody,
        result=ScheduleResult,
        answers=(403, 404, 409, 413),
    ),
    Operation(
        "GET",
        _SCHEDULE,
        read_schedule,
        "Read a schedule",
        over=Over.EVERYTHING,
        result=ScheduleResult,
        answers=(404,),
    ),
    Operation(
        "DELETE",
        _SCHEDULE,
        delete_schedule,
        "Delete a schedule",
        right=Right.ADMIN,
        over=Over.EVERYTHING,
        result=DeletedResult,
        answers=(403,),
    ),
    _change("pause", pause_schedule, "Pause a schedule", ScheduleResult, right=Right.ADMIN),
    _change("resume", resume_schedule, "Resume a schedule", ScheduleResult, right=Right.ADMIN),
    _change(
        "trigger",
        trigger_schedule,
        "Submit a task of a schedule now",
        OccurrenceResult,
        right=Right.SUBMIT,
        status=201,
        key="A repeated call of this caller is the same task.",
    ),
    _change(
        "backfill",
        backfill_schedule,
        "Submit missed occurrences of a schedule",
        OccurrencesResult,
        right=Right.SUBMIT,
        body=BackfillBody,
    ),
)
