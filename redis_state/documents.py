"""How tasks, pauses, queues, workers and schedules are written as plain JSON.

What the commands print with ``--json`` and what the gateway answers have these shapes. Times are
ISO 8601. Nothing here holds what decides a pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from redis_state.models import StateUpdate, TaskState
from redis_state.models.tasks import parent_of
from redis_state.serialization.sealed import Sealed, unreadable_of

# The names of types alone: the commands that need no worker start without it.
if TYPE_CHECKING:
    from redis_state.worker import (
        Occurrence,
        OpenPause,
        PublishedValue,
        QueueInfo,
        QueueKeyInfo,
        Rate,
        RateUse,
        ScheduleView,
        TaskLink,
        TaskSummary,
        TaskView,
        WorkerInfo,
    )


def task_document(state: TaskState) -> dict[str, Any]:
    """Write a task."""
    return {
        "session_id": state.session_id,
        "task_id": state.task_id,
        "status": state.status.value,
        "task_type": state.task_type.value,
        "priority": state.priority,
        "trace_id": state.trace_id,
        "description": state.description,
        "parent": parent_of(state),
        "progress": state.progress,
        "error": state.error,
        "result": state.result,
        "created_at": time_text(state.created_at),
        "updated_at": time_text(state.updated_at),
    }


def view_document(view: TaskView) -> dict[str, Any]:
    """Write a task with what its workers know of it."""
    return task_document(view.state) | {
        "handler": view.handler,
        "version": view.version,
        "worker": view.worker,
        "queue": view.queue,
        "attempts": view.attempts,
        "crashes": view.crashes,
        "parent": view.parent,
        "isolated": view.isolated,
        "waits_for": view.waits_for,
        "retries": view.retries,
        "attributes": dict(view.attributes),
        "rerun_of": link_document(view.rerun_of),
        "forked_from": link_document(view.forked_from),
        "running": [
            {"step": step.step, "attempt": step.attempt, "began_at": time_text(step.began_at)}
            for step in view.running
        ],
        "archived": view.archived,
        "unreadable": unreadable_of(view.state),
    }


def summary_document(task: TaskSummary) -> dict[str, Any]:
    """Write a task that was found."""
    return {
        "session_id": task.session_id,
        "task_id": task.task_id,
        "status": task.status.value,
        "handler": task.handler,
        "attributes": dict(task.attributes),
        "created_at": time_text(task.created_at),
        "updated_at": time_text(task.updated_at),
        "description": task.description,
        "error": task.error,
        "priority": task.priority,
        "queue": task.queue,
        "worker": task.worker,
        "attempts": task.attempts,
        "crashes": task.crashes,
        "retries": task.retries,
        "parent": task.parent,
        "rerun_of": link_document(task.rerun_of),
        "forked_from": link_document(task.forked_from),
        "archived": task.archived,
    }


def link_document(link: TaskLink | None) -> dict[str, Any] | None:
    """Write the task that another one was made from."""
    if link is None:
        return None
    named = {"session_id": link.session_id, "task_id": link.task_id}
    return named | ({} if link.before is None else {"before": link.before})


def update_document(update: StateUpdate, cursor: str) -> dict[str, Any]:
    """Write an update, with the cursor that reads on after it."""
    return {
        "cursor": cursor,
        "task_id": update.task_id,
        "type": update.update_type.value,
        "content": update.content,
        "step": update.step_index,
        "total": update.total_steps,
        "at": time_text(update.created_at),
    }


def pause_document(pause: OpenPause) -> dict[str, Any]:
    """Write an open pause: what it asks, and the id that it is decided by."""
    return {
        "session_id": pause.session_id,
        "task_id": pause.task_id,
        "pause_id": pause.pause_id,
        "name": pause.name,
        "reason": pause.reason,
        "payload": pause.payload,
        "tags": list(pause.tags),
        "opened_at": time_text(pause.opened_at),
        "expires_at": time_text(pause.expires_at),
        "on_timeout": pause.on_timeout,
        "schema": pause.schema,
        "approvals": pause.approvals,
        "rejections": pause.rejections,
        "deciders": [
            {
                "name": each.name,
                "state": each.state,
                "at": time_text(each.at),
                "delegated_to": each.delegated_to,
            }
            for each in pause.deciders
        ],
        "escalations": [
            {
                "at": time_text(each.at),
                "to": list(each.to),
                "replace": each.replace,
                "done": each.done,
            }
            for each in pause.escalations
        ],
    }


def value_document(value: PublishedValue) -> dict[str, Any]:
    """Write a value that a task has published."""
    return {
        "key": value.key,
        "value": value.value,
        "at": _ms_text(value.at_ms),
        "run": value.epoch,
        "unreadable": type(value.value) is Sealed,
    }


def queue_document(queue: QueueInfo) -> dict[str, Any]:
    """Write a queue."""
    return {
        "name": queue.name,
        "waiting": queue.waiting,
        "later": queue.later,
        "running": queue.running,
        "oldest_s": round(queue.oldest_s, 3),
        "workers": queue.workers,
        "paused": queue.paused,
        "limit": queue.limit,
        "per_key": queue.per_key,
        "rate": _rate_document(queue.rate),
        "keys": {
            key: {"running": its.running, "rate": _rate_document(its.rate)}
            for key, its in queue.keys.items()
        },
    }


def worker_document(info: WorkerInfo) -> dict[str, Any]:
    """Write a worker process."""
    return {
        "name": info.name,
        "instance": info.instance,
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "queues": list(info.queues),
        "handlers": list(info.handlers),
        "versions": {name: list(known) for name, known in info.versions.items()},
        "max_tasks": info.max_tasks,
        "heartbeat": info.heartbeat,
        "draining": info.draining,
        "running": [{"session_id": session, "task_id": task} for session, task in info.running],
        "running_count": info.running_count,
        "counters": dict(info.counters),
        "started_at": _ms_text(info.started_ms),
        "last_seen_at": _ms_text(info.last_seen_ms),
        "last_poll_at": _ms_text(info.last_poll_ms),
        "silent_s": round(info.silent_s, 3),
        "unpolled_s": None if info.unpolled_s is None else round(info.unpolled_s, 3),
        "stalled": info.stalled,
    }


def schedule_document(view: ScheduleView) -> dict[str, Any]:
    """Write a schedule, without the input of its tasks."""
    schedule = view.schedule
    return {
        "schedule_id": schedule.schedule_id,
        "handler": schedule.handler,
        "session_id": schedule.session_id,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "every_s": None if schedule.every is None else schedule.every.total_seconds(),
        "anchor": time_text(schedule.anchor),
        "start": time_text(schedule.start),
        "end": time_text(schedule.end),
        "queue": schedule.queue,
        "priority": schedule.priority,
        "description": schedule.description,
        "missed": schedule.missed,
        "max_missed": schedule.max_missed,
        "grace_s": schedule.grace.total_seconds(),
        "overlap": schedule.overlap,
        "attributes": dict(schedule.attributes),
        "limit_key": schedule.limit_key,
        "in_turn": schedule.in_turn,
        "on_busy": schedule.on_busy,
        "paused": view.paused,
        "next_at": time_text(view.next_at),
        "last": None if view.last is None else occurrence_document(view.last),
        "last_status": None if view.last_status is None else view.last_status.value,
        "skipped_at": time_text(view.skipped_at),
        "skipped_why": view.skipped_why,
        "fired": view.fired,
        "revision": view.revision,
        "created_at": time_text(view.created_at),
    }


def occurrence_document(each: Occurrence) -> dict[str, Any]:
    """Write an occurrence of a schedule, and the task that it became."""
    found = {"at": time_text(each.at), "session_id": each.session_id, "task_id": each.task_id}
    return found if each.state is None else found | {"state": each.state}


def time_text(moment: datetime | None) -> str | None:
    """Write a moment, or None."""
    return None if moment is None else moment.isoformat()


def _ms_text(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def queue_key_document(each: QueueKeyInfo) -> dict[str, Any]:
    """Write a key of a queue."""
    return {
        "limit_key": each.limit_key,
        "in_turn": each.in_turn,
        "waiting": each.waiting,
        "running": each.running,
        "oldest_s": round(each.oldest_s, 3),
    }


def rates_document(rates: Mapping[str, Rate]) -> list[dict[str, Any]]:
    """Write rates that were set, by their names."""
    return [{"name": name} | rate_document(rate) for name, rate in rates.items()]


def rate_uses_document(uses: Iterable[RateUse]) -> list[dict[str, Any]]:
    """Write rates that are used now."""
    return [
        {"name": use.name}
        | rate_document(use.rate)
        | {"taken": use.taken, "wait_s": round(use.wait_s, 3)}
        for use in uses
    ]


def rate_document(rate: Rate) -> dict[str, Any]:
    """Write a rate: so many in so many seconds."""
    return {"limit": rate.limit, "per_s": rate.per.total_seconds()}


def _rate_document(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else rate_document(rate)
