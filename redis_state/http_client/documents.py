"""Documents of a gateway, read back into the models that `TaskClient` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from redis_state.models import StateUpdate, TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.models.tasks import FOREGROUND
from redis_state.serialization.payloads import Sealed
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


def read_state(said: Mapping[str, Any]) -> TaskState:
    """Read a task. Of its context only the parent is known."""
    session_id, task_id = said["session_id"], said["task_id"]
    created_at = moment(said["created_at"])
    return TaskState(
        task_id=task_id,
        session_id=session_id,
        status=TaskStatus(said["status"]),
        task_type=TaskType(said["task_type"]),
        priority=said["priority"],
        context_snapshot=TaskContextSnapshot(
            session_id=session_id,
            task_id=task_id,
            spawned_from_task_id=said["parent"] or FOREGROUND,
            spawned_at=created_at,
        ),
        trace_id=said["trace_id"],
        result=_readable(said, "result"),
        error=_readable(said, "error"),
        description=said["description"],
        progress=said["progress"],
        created_at=created_at,
        updated_at=moment(said["updated_at"]),
    )


def read_view(said: Mapping[str, Any]) -> TaskView:
    """Read a task with what its workers know of it."""
    names = ("handler", "worker", "queue", "attempts", "crashes", "parent", "isolated")
    more = ("waits_for", "retries", "attributes", "version")
    return TaskView(
        state=read_state(said),
        **{name: said[name] for name in (*names, *more)},
        rerun_of=read_link(said["rerun_of"]),
        forked_from=read_link(said["forked_from"]),
        running=tuple(
            RunningStep(each["step"], each["attempt"], moment(each["began_at"]))
            for each in said["running"]
        ),
        archived=bool(said.get("archived")),
    )


def read_summary(said: Mapping[str, Any]) -> TaskSummary:
    """Read a task that was found."""
    names = ("session_id", "task_id", "handler", "attributes", "description", "error", "priority")
    more = ("queue", "worker", "attempts", "crashes", "retries", "parent")
    return TaskSummary(
        **{name: said[name] for name in (*names, *more)},
        status=TaskStatus(said["status"]),
        created_at=moment(said["created_at"]),
        updated_at=moment(said["updated_at"]),
        rerun_of=read_link(said["rerun_of"]),
        forked_from=read_link(said["forked_from"]),
        archived=bool(said.get("archived")),
    )


def read_link(said: Mapping[str, Any] | None) -> TaskLink | None:
    """Read the task that another one was made from."""
    if said is None:
        return None
    return TaskLink(said["session_id"], said["task_id"], said.get("before"))


def read_tree(said: Mapping[str, Any]) -> TaskTree:
    """Read a task and those that it has spawned."""
    return TaskTree(read_state(said), tuple(map(read_tree, said["children"])))


def read_session(said: Mapping[str, Any]) -> SessionTasks:
    """Read a session of a list."""
    return SessionTasks(said["session_id"], read_counts(said["counts"]), moment(said["newest_at"]))


def read_counts(said: Mapping[str, int]) -> dict[TaskStatus, int]:
    """Read how many tasks there are of each status."""
    return {TaskStatus(status): count for status, count in said.items()}


def read_step(said: Mapping[str, Any]) -> StepSnapshot:
    """Read a recorded step."""
    return StepSnapshot(**_step(said))


def read_full_step(said: Mapping[str, Any]) -> FullSnapshot:
    """Read a recorded step with its result."""
    return FullSnapshot(**_step(said), result=said["result"])


def read_compensation(said: Mapping[str, Any]) -> Compensation:
    """Read what a handler registered to be undone."""
    return Compensation(said["name"], said["state"], said["error"], said["on_cancel"])


def read_row(session_id: str, said: Mapping[str, Any]) -> Entry[StateUpdate]:
    """Read an update of a timeline."""
    update = StateUpdate(
        session_id=session_id,
        task_id=said["task_id"],
        trace_id=said["trace_id"],
        update_id=said["update_id"],
        update_type=said["type"],
        content=said["content"],
        step_index=said["step"],
        total_steps=said["total"],
        created_at=moment(said["at"]),
    )
    return Entry[StateUpdate].reported(said["cursor"], update, said["run"])


def read_timeline(session_id: str, said: Mapping[str, Any]) -> Timeline:
    """Read a timeline."""
    return Timeline(
        task=read_view(said["task"]),
        steps=tuple(map(read_step, said["steps"])),
        compensations=tuple(map(read_compensation, said["compensations"])),
        pauses=tuple(map(read_pause, said["pauses"])),
        updates=tuple(read_row(session_id, row) for row in said["rows"]),
        missed=said["missed"],
        cursor=said["cursor"],
        at_end=said["at_end"],
        incomplete=bool(said.get("incomplete")),
    )


def read_pause(said: Mapping[str, Any]) -> OpenPause:
    """Read an open pause. Its token stays at the server, and so does its default."""
    names = ("session_id", "task_id", "name", "reason", "payload", "on_timeout", "pause_id")
    return OpenPause(
        **{name: said[name] for name in names},
        tags=tuple(said["tags"]),
        opened_at=moment(said["opened_at"]),
        expires_at=moment(said["expires_at"]),
        default=None,
        token=None,
        schema=said["schema"],
        approvals=said["approvals"],
        rejections=said["rejections"],
        deciders=tuple(
            Decider(each["name"], each["state"], _moment(each["at"]), each["delegated_to"])
            for each in said["deciders"]
        ),
        escalations=tuple(
            Escalation(moment(each["at"]), tuple(each["to"]), each["replace"], each["done"])
            for each in said["escalations"]
        ),
    )


def read_report(said: Mapping[str, Any]) -> BulkReport:
    """Read what became of all tasks."""
    items = [
        BulkItem(
            **{name: each[name] for name in ("session_id", "task_id", "new_task_id", "reason")},
            status=TaskStatus(each["status"]),
            outcome=BulkOutcome(each["outcome"]),
        )
        for each in said["items"]
    ]
    counts = {BulkOutcome(outcome): count for outcome, count in said["counts"].items()}
    return BulkReport(items, said["more"], counts)


def read_queue(said: Mapping[str, Any]) -> QueueInfo:
    """Read a queue."""
    names = ("name", "waiting", "later", "running", "oldest_s", "paused", "limit", "per_key")
    return QueueInfo(
        **{name: said[name] for name in names},
        # Gateways of earlier versions do not count them.
        workers=said.get("workers", 0),
        rate=_rate(said["rate"]),
        keys={
            key: KeyLimits(its["running"], _rate(its["rate"])) for key, its in said["keys"].items()
        },
    )


def read_queue_key(said: Mapping[str, Any]) -> QueueKeyInfo:
    """Read a key of a queue."""
    names = ("limit_key", "in_turn", "waiting", "running", "oldest_s")
    return QueueKeyInfo(**{name: said[name] for name in names})


def read_value(said: Mapping[str, Any]) -> PublishedValue:
    """Read a value that a task has published."""
    value = Sealed.shown_as(str(said["value"])) if said["unreadable"] else said["value"]
    return PublishedValue(said["key"], _ms(said["at"]), said["run"], value)


def read_worker(said: Mapping[str, Any]) -> WorkerInfo:
    """Read a worker process."""
    names = ("name", "instance", "host", "pid", "version", "max_tasks", "heartbeat", "draining")
    more = ("running_count", "counters", "silent_s", "unpolled_s", "versions")
    last_poll = said["last_poll_at"]
    return WorkerInfo(
        **{name: said[name] for name in (*names, *more)},
        queues=tuple(said["queues"]),
        handlers=tuple(said["handlers"]),
        running=tuple((each["session_id"], each["task_id"]) for each in said["running"]),
        started_ms=_ms(said["started_at"]),
        last_seen_ms=_ms(said["last_seen_at"]),
        last_poll_ms=None if last_poll is None else _ms(last_poll),
    )


def read_schedule(said: Mapping[str, Any]) -> ScheduleView:
    """Read a schedule, without the input of its tasks, which the gateway does not show."""
    names = ("schedule_id", "handler", "session_id", "cron", "timezone", "queue", "priority")
    more = ("description", "missed", "max_missed", "overlap")
    # An older gateway knows none of these.
    optional = ("attributes", "limit_key", "in_turn", "on_busy")
    every_s, last, status = said["every_s"], said["last"], said["last_status"]
    schedule = Schedule(
        **{name: said[name] for name in (*names, *more)},
        **{name: said[name] for name in optional if name in said},
        every=None if every_s is None else timedelta(seconds=every_s),
        anchor=_moment(said["anchor"]),
        start=_moment(said["start"]),
        end=_moment(said["end"]),
        grace=timedelta(seconds=said["grace_s"]),
    )
    return ScheduleView(
        schedule=schedule,
        paused=said["paused"],
        next_at=_moment(said["next_at"]),
        last=None if last is None else read_occurrence(last),
        last_status=None if status is None else TaskStatus(status),
        skipped_at=_moment(said["skipped_at"]),
        skipped_why=said["skipped_why"],
        fired=said["fired"],
        revision=said["revision"],
        created_at=moment(said["created_at"]),
    )


def read_occurrence(said: Mapping[str, Any]) -> Occurrence:
    """Read an occurrence of a schedule."""
    at = _moment(said["at"])
    return Occurrence(at, said["session_id"], said["task_id"], said.get("state"))


def moment(written: str) -> datetime:
    """Read a moment."""
    return datetime.fromisoformat(written)


def _readable(said: Mapping[str, Any], name: str) -> Any:
    """Read a field of a task: what the gateway cannot read is `Sealed`, as to any other reader."""
    value = said.get(name)
    return Sealed.shown_as(str(value)) if name in said.get("unreadable", ()) else value


def _moment(written: str | None) -> datetime | None:
    return None if written is None else moment(written)


def _ms(written: str) -> int:
    return round(moment(written).timestamp() * 1000)


def read_rate(said: Mapping[str, Any]) -> Rate:
    """Read a rate."""
    return Rate(said["limit"], timedelta(seconds=said["per_s"]))


def read_rate_use(said: Mapping[str, Any]) -> RateUse:
    """Read a rate that is used now."""
    return RateUse(said["name"], read_rate(said), said["taken"], said["wait_s"])


def _rate(said: Mapping[str, Any] | None) -> Rate | None:
    return None if said is None else read_rate(said)


def _step(said: Mapping[str, Any]) -> dict[str, Any]:
    names = ("version", "step", "checkpoint", "size", "attempts")
    return {name: said[name] for name in names} | {
        "epoch": said["run"],
        "at": moment(said["at"]),
        "began_at": _moment(said["began_at"]),
    }
