"""Documents of a gateway, read back into the models that `TaskClient` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from redis_state.models import StateUpdate, TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.models.tasks import FOREGROUND
from redis_state.serialization.sealed import Sealed
from redis_state.stores.sessions.session_log import Entry
from redis_state.worker import (
    BulkItem,
    BulkOutcome,
    BulkReport,
    Compensation,
    Decider,
    Escalation,
    FullSnapshot,
    KeyLimits,
    Occurrence,
    OpenPause,
    PublishedValue,
    QueueInfo,
    QueueKeyInfo,
    Rate,
    RateUse,
    RunningStep,
    Schedule,
    ScheduleView,
    SessionTasks,
    StepSnapshot,
    TaskLink,
    TaskSummary,
    TaskView,
    WorkerInfo,
)


@dataclass(frozen=True, slots=True)
class TaskTree:
    """A task without its result, and those that it has spawned."""

    state: TaskState
    children: Sequence[TaskTree]


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that is known of a task's runs.

    ``updates`` are a page of its updates: ``cursor`` reads on after them, ``at_end`` says that
    there are no more yet. ``missed`` counts those before the page that are not kept any more. One
    that is ``incomplete`` may lack those that are only in the archive, which could not be read. A
    page may be empty before the end: read on until ``at_end``.
    """

    task: TaskView
    steps: Sequence[StepSnapshot]
    compensations: Sequence[Compensation]
    pauses: Sequence[OpenPause]
    updates: Sequence[Entry[StateUpdate]]
    missed: int | None
    cursor: str
    at_end: bool
    incomplete: bool = False


def read_state(given: Mapping[str, Any]) -> TaskState:
    """Read a task. Of its context only the parent is known."""
    session_id, task_id = given["session_id"], given["task_id"]
    created_at = moment(given["created_at"])
    return TaskState(
        task_id=task_id,
        session_id=session_id,
        status=TaskStatus(given["status"]),
        task_type=TaskType(given["task_type"]),
        priority=given["priority"],
        context_snapshot=TaskContextSnapshot(
            session_id=session_id,
            task_id=task_id,
            spawned_from_task_id=given["parent"] or FOREGROUND,
            spawned_at=created_at,
        ),
        trace_id=given["trace_id"],
        result=_readable(given, "result"),
        error=_readable(given, "error"),
        description=given["description"],
        progress=given["progress"],
        created_at=created_at,
        updated_at=moment(given["updated_at"]),
    )


def read_view(given: Mapping[str, Any]) -> TaskView:
    """Read a task with what its workers know of it."""
    names = ("handler", "worker", "queue", "attempts", "crashes", "parent", "isolated")
    more = ("waits_for", "retries", "attributes", "version")
    return TaskView(
        state=read_state(given),
        **{name: given[name] for name in (*names, *more)},
        rerun_of=read_link(given["rerun_of"]),
        forked_from=read_link(given["forked_from"]),
        running=tuple(
            RunningStep(each["step"], each["attempt"], moment(each["began_at"]))
            for each in given["running"]
        ),
        archived=bool(given.get("archived")),
    )


def read_summary(given: Mapping[str, Any]) -> TaskSummary:
    """Read a task that was found."""
    names = ("session_id", "task_id", "handler", "attributes", "description", "error", "priority")
    more = ("queue", "worker", "attempts", "crashes", "retries", "parent")
    return TaskSummary(
        **{name: given[name] for name in (*names, *more)},
        status=TaskStatus(given["status"]),
        created_at=moment(given["created_at"]),
        updated_at=moment(given["updated_at"]),
        rerun_of=read_link(given["rerun_of"]),
        forked_from=read_link(given["forked_from"]),
        archived=bool(given.get("archived")),
    )


def read_link(given: Mapping[str, Any] | None) -> TaskLink | None:
    """Read the task that another one was made from."""
    if given is None:
        return None
    return TaskLink(given["session_id"], given["task_id"], given.get("before"))


def read_tree(given: Mapping[str, Any]) -> TaskTree:
    """Read a task and those that it has spawned."""
    return TaskTree(read_state(given), tuple(map(read_tree, given["children"])))


def read_session(given: Mapping[str, Any]) -> SessionTasks:
    """Read a session of a list."""
    return SessionTasks(
        given["session_id"], read_counts(given["counts"]), moment(given["newest_at"])
    )


def read_counts(given: Mapping[str, int]) -> dict[TaskStatus, int]:
    """Read how many tasks there are of each status."""
    return {TaskStatus(status): count for status, count in given.items()}


def read_step(given: Mapping[str, Any]) -> StepSnapshot:
    """Read a recorded step."""
    return StepSnapshot(**_step(given))


def read_full_step(given: Mapping[str, Any]) -> FullSnapshot:
    """Read a recorded step with its result."""
    return FullSnapshot(**_step(given), result=given["result"])


def read_compensation(given: Mapping[str, Any]) -> Compensation:
    """Read what a handler registered to be undone."""
    return Compensation(given["name"], given["state"], given["error"], given["on_cancel"])


def read_row(session_id: str, given: Mapping[str, Any]) -> Entry[StateUpdate]:
    """Read an update of a timeline."""
    update = StateUpdate(
        session_id=session_id,
        task_id=given["task_id"],
        trace_id=given["trace_id"],
        update_id=given["update_id"],
        update_type=given["type"],
        content=given["content"],
        step_index=given["step"],
        total_steps=given["total"],
        created_at=moment(given["at"]),
    )
    return Entry[StateUpdate].reported(given["cursor"], update, given["run"])


def read_timeline(session_id: str, given: Mapping[str, Any]) -> Timeline:
    """Read a timeline."""
    return Timeline(
        task=read_view(given["task"]),
        steps=tuple(map(read_step, given["steps"])),
        compensations=tuple(map(read_compensation, given["compensations"])),
        pauses=tuple(map(read_pause, given["pauses"])),
        updates=tuple(read_row(session_id, row) for row in given["rows"]),
        missed=given["missed"],
        cursor=given["cursor"],
        at_end=given["at_end"],
        incomplete=bool(given.get("incomplete")),
    )


def read_pause(given: Mapping[str, Any]) -> OpenPause:
    """Read an open pause. Its token stays at the server, and so does its default."""
    names = ("session_id", "task_id", "name", "reason", "payload", "on_timeout", "pause_id")
    return OpenPause(
        **{name: given[name] for name in names},
        tags=tuple(given["tags"]),
        opened_at=moment(given["opened_at"]),
        expires_at=moment(given["expires_at"]),
        default=None,
        token=None,
        schema=given["schema"],
        approvals=given["approvals"],
        rejections=given["rejections"],
        deciders=tuple(
            Decider(each["name"], each["state"], _moment(each["at"]), each["delegated_to"])
            for each in given["deciders"]
        ),
        escalations=tuple(
            Escalation(moment(each["at"]), tuple(each["to"]), each["replace"], each["done"])
            for each in given["escalations"]
        ),
    )


def read_report(given: Mapping[str, Any]) -> BulkReport:
    """Read what became of all tasks."""
    items = [
        BulkItem(
            **{name: each[name] for name in ("session_id", "task_id", "new_task_id", "reason")},
            status=TaskStatus(each["status"]),
            outcome=BulkOutcome(each["outcome"]),
        )
        for each in given["items"]
    ]
    counts = {BulkOutcome(outcome): count for outcome, count in given["counts"].items()}
    return BulkReport(items, given["more"], counts)


def read_queue(given: Mapping[str, Any]) -> QueueInfo:
    """Read a queue."""
    names = ("name", "waiting", "later", "running", "oldest_s", "paused", "limit", "per_key")
    return QueueInfo(
        **{name: given[name] for name in names},
        # Gateways of earlier versions do not count them.
        workers=given.get("workers", 0),
        rate=_rate(given["rate"]),
        keys={
            key: KeyLimits(its["running"], _rate(its["rate"])) for key, its in given["keys"].items()
        },
    )


def read_queue_key(given: Mapping[str, Any]) -> QueueKeyInfo:
    """Read a key of a queue."""
    names = ("limit_key", "in_turn", "waiting", "running", "oldest_s")
    return QueueKeyInfo(**{name: given[name] for name in names})


def read_value(given: Mapping[str, Any]) -> PublishedValue:
    """Read a value that a task has published."""
    value = Sealed.shown_as(str(given["value"])) if given["unreadable"] else given["value"]
    return PublishedValue(given["key"], _ms(given["at"]), given["run"], value)


def read_worker(given: Mapping[str, Any]) -> WorkerInfo:
    """Read a worker process."""
    names = ("name", "instance", "host", "pid", "version", "max_tasks", "heartbeat", "draining")
    more = ("running_count", "counters", "silent_s", "unpolled_s", "versions")
    last_poll = given["last_poll_at"]
    return WorkerInfo(
        **{name: given[name] for name in (*names, *more)},
        queues=tuple(given["queues"]),
        handlers=tuple(given["handlers"]),
        running=tuple((each["session_id"], each["task_id"]) for each in given["running"]),
        started_ms=_ms(given["started_at"]),
        last_seen_ms=_ms(given["last_seen_at"]),
        last_poll_ms=None if last_poll is None else _ms(last_poll),
    )


def read_schedule(given: Mapping[str, Any]) -> ScheduleView:
    """Read a schedule, without the input of its tasks, which the gateway does not show."""
    names = ("schedule_id", "handler", "session_id", "cron", "timezone", "queue", "priority")
    more = ("description", "missed", "max_missed", "overlap")
    # An older gateway knows none of these.
    optional = ("attributes", "limit_key", "in_turn", "on_busy")
    every_s, last, status = given["every_s"], given["last"], given["last_status"]
    schedule = Schedule(
        **{name: given[name] for name in (*names, *more)},
        **{name: given[name] for name in optional if name in given},
        every=None if every_s is None else timedelta(seconds=every_s),
        anchor=_moment(given["anchor"]),
        start=_moment(given["start"]),
        end=_moment(given["end"]),
        grace=timedelta(seconds=given["grace_s"]),
    )
    return ScheduleView(
        schedule=schedule,
        paused=given["paused"],
        next_at=_moment(given["next_at"]),
        last=None if last is None else read_occurrence(last),
        last_status=None if status is None else TaskStatus(status),
        skipped_at=_moment(given["skipped_at"]),
        skipped_why=given["skipped_why"],
        fired=given["fired"],
        revision=given["revision"],
        created_at=moment(given["created_at"]),
    )


def read_occurrence(given: Mapping[str, Any]) -> Occurrence:
    """Read an occurrence of a schedule."""
    at = _moment(given["at"])
    return Occurrence(at, given["session_id"], given["task_id"], given.get("state"))


def moment(written: str) -> datetime:
    """Read a moment."""
    return datetime.fromisoformat(written)


def _readable(given: Mapping[str, Any], name: str) -> Any:
    """Read a field of a task: what the gateway cannot read is `Sealed`, as to any other reader."""
    value = given.get(name)
    return Sealed.shown_as(str(value)) if name in given.get("unreadable", ()) else value


def _moment(written: str | None) -> datetime | None:
    return None if written is None else moment(written)


def _ms(written: str) -> int:
    return round(moment(written).timestamp() * 1000)


def read_rate(given: Mapping[str, Any]) -> Rate:
    """Read a rate."""
    return Rate(given["limit"], timedelta(seconds=given["per_s"]))


def read_rate_use(given: Mapping[str, Any]) -> RateUse:
    """Read a rate that is used now."""
    return RateUse(given["name"], read_rate(given), given["taken"], given["wait_s"])


def _rate(given: Mapping[str, Any] | None) -> Rate | None:
    return None if given is None else read_rate(given)


def _step(given: Mapping[str, Any]) -> dict[str, Any]:
    names = ("version", "step", "checkpoint", "size", "attempts")
    return {name: given[name] for name in names} | {
        "epoch": given["run"],
        "at": moment(given["at"]),
        "began_at": _moment(given["began_at"]),
    }
