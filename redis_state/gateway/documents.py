"""What answers say of tasks, pauses, queues, workers and schedules: plain JSON, without tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from redis_state.gateway.cutting import cut_tokens
from redis_state.models import StateUpdate, TaskState
from redis_state.stores.sessions.session_log import Entry
from redis_state.worker import (
    BulkItem,
    BulkOutcome,
    Compensation,
    OpenPause,
    QueueInfo,
    Rate,
    ScheduleView,
    SessionTasks,
    StepSnapshot,
    TaskLink,
    TaskSummary,
    TaskView,
    WorkerInfo,
)


def state_document(state: TaskState) -> dict[str, Any]:
    """Write a task."""
    spawned_from = state.context_snapshot.spawned_from_task_id
    is_root = spawned_from in ("foreground", state.task_id)
    document = {
        "session_id": state.session_id,
        "task_id": state.task_id,
        "status": state.status.value,
        "priority": state.priority,
        "description": state.description,
        "parent": None if is_root else spawned_from,
        "error": state.error,
        "result": state.result,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
    }
    return _cut(state.session_id, document, "session_id", "task_id")


def view_document(view: TaskView) -> dict[str, Any]:
    """Write a task with what its workers know of it."""
    document = {
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
        "rerun_of": _link(view.rerun_of),
        "forked_from": _link(view.forked_from),
        "running": [
            {"step": step.step, "attempt": step.attempt, "began_at": _time(step.began_at)}
            for step in view.running
        ],
    }
    return state_document(view.state) | _cut(view.state.session_id, document)


def summary_document(task: TaskSummary) -> dict[str, Any]:
    """Write a task that was found."""
    document = {
        "session_id": task.session_id,
        "task_id": task.task_id,
        "status": task.status.value,
        "handler": task.handler,
        "attributes": dict(task.attributes),
        "created_at": task.created_at,
        "updated_at": task.updated_at,
        "description": task.description,
        "error": task.error,
        "priority": task.priority,
        "queue": task.queue,
        "worker": task.worker,
        "attempts": task.attempts,
        "crashes": task.crashes,
        "retries": task.retries,
        "parent": task.parent,
        "rerun_of": _link(task.rerun_of),
        "forked_from": _link(task.forked_from),
    }
    return _cut(task.session_id, document, "session_id", "task_id")


def session_document(session: SessionTasks) -> dict[str, Any]:
    """Write a session that has tasks."""
    return {
        "session_id": session.session_id,
        "counts": {status.value: count for status, count in session.counts.items()},
        "newest_at": _time(session.newest_at),
    }


def branch_document(state: TaskState, tasks: Sequence[TaskState]) -> dict[str, Any]:
    """Write a task and, in it, those that it has spawned."""
    below: dict[str, list[TaskState]] = {}
    for each in tasks:
        spawned_from = each.context_snapshot.spawned_from_task_id
        if spawned_from != each.task_id:
            below.setdefault(spawned_from, []).append(each)
    return _branch(state, below, {state.task_id})


def _branch(state: TaskState, below: dict[str, list[TaskState]], seen: set[str]) -> dict[str, Any]:
    children: list[dict[str, Any]] = []
    for child in below.get(state.task_id, []):
        if child.task_id not in seen:
            seen.add(child.task_id)
            children.append(_branch(child, below, seen))
    document = state_document(state)
    # A tree is to be looked at: results are read one by one.
    del document["result"]
    return document | {"children": children}


def step_document(session_id: str, step: StepSnapshot) -> dict[str, Any]:
    """Write a recorded step, without its result."""
    document = {
        "version": step.version,
        "step": step.step,
        "checkpoint": step.checkpoint,
        "run": step.epoch,
        "began_at": step.began_at,
        "at": step.at,
        "attempts": step.attempts,
        "size": step.size,
    }
    return _cut(session_id, document)


def compensation_document(session_id: str, undo: Compensation) -> dict[str, Any]:
    """Write a compensation."""
    document = {
        "name": undo.name,
        "state": undo.state,
        "error": undo.error,
        "on_cancel": undo.on_cancel,
    }
    return _cut(session_id, document)


def row_document(entry: Entry[StateUpdate], update: StateUpdate) -> dict[str, Any]:
    """Write an update of a task, as the caller may see it."""
    document = {
        "cursor": entry.cursor,
        "run": entry.run,
        "task_id": update.task_id,
        "type": update.update_type.value,
        "content": update.content,
        "step": update.step_index,
        "total": update.total_steps,
        "at": update.created_at,
    }
    return _cut(update.session_id, document, "task_id", "cursor")


def pause_document(pause: OpenPause) -> dict[str, Any]:
    """Write an open pause: what it asks, and the id that it is decided by."""
    document = {
        "session_id": pause.session_id,
        "task_id": pause.task_id,
        "pause_id": pause.pause_id,
        "name": pause.name,
        "reason": pause.reason,
        "payload": pause.payload,
        "tags": list(pause.tags),
        "opened_at": pause.opened_at,
        "expires_at": pause.expires_at,
        "on_timeout": pause.on_timeout,
        "schema": pause.schema,
        "approvals": pause.approvals,
        "rejections": pause.rejections,
        "deciders": [
            {
                "name": each.name,
                "state": each.state,
                "at": _time(each.at),
                "delegated_to": each.delegated_to,
            }
            for each in pause.deciders
        ],
        "escalations": [
            {
                "at": _time(each.at),
                "to": list(each.to),
                "replace": each.replace,
                "done": each.done,
            }
            for each in pause.escalations
        ],
    }
    names = ("session_id", "task_id", "pause_id", "tags")
    return {"state": "open"} | _cut(pause.session_id, document, *names)


def item_document(item: BulkItem) -> dict[str, Any]:
    """Write what became of one task. Trouble with the server is the operator's to read."""
    failed = item.outcome is BulkOutcome.FAILED
    return {
        "session_id": item.session_id,
        "task_id": item.task_id,
        "status": item.status.value,
        "outcome": item.outcome.value,
        "new_task_id": item.new_task_id,
        "reason": "the state store cannot answer now" if failed else item.reason,
    }


def queue_document(queue: QueueInfo) -> dict[str, Any]:
    """Write a queue."""
    return {
        "name": queue.name,
        "waiting": queue.waiting,
        "later": queue.later,
        "running": queue.running,
        "oldest_s": round(queue.oldest_s, 3),
        "paused": queue.paused,
        "limit": queue.limit,
        "per_key": queue.per_key,
        "rate": _rate(queue.rate),
        "keys": {
            key: {"running": its.running, "rate": _rate(its.rate)}
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
        "silent_s": round(info.silent_s, 3),
        "unpolled_s": None if info.unpolled_s is None else round(info.unpolled_s, 3),
        "stalled": info.stalled,
    }


def schedule_document(view: ScheduleView) -> dict[str, Any]:
    """Write a schedule, without the input of its tasks."""
    schedule, last = view.schedule, view.last
    return {
        "schedule_id": schedule.schedule_id,
        "handler": schedule.handler,
        "session_id": schedule.session_id,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "every_s": None if schedule.every is None else schedule.every.total_seconds(),
        "start": _time(schedule.start),
        "end": _time(schedule.end),
        "queue": schedule.queue,
        "priority": schedule.priority,
        "description": schedule.description,
        "missed": schedule.missed,
        "overlap": schedule.overlap,
        "paused": view.paused,
        "next_at": _time(view.next_at),
        "last": None
        if last is None
        else {"at": _time(last.at), "session_id": last.session_id, "task_id": last.task_id},
        "last_status": None if view.last_status is None else view.last_status.value,
        "skipped_at": _time(view.skipped_at),
        "skipped_why": view.skipped_why,
        "fired": view.fired,
        "revision": view.revision,
        "created_at": _time(view.created_at),
    }


def _cut(session_id: str, document: dict[str, Any], *kept: str) -> dict[str, Any]:
    """Write times as text, and cut tokens everywhere but in ids, which name things."""
    written = {
        name: _time(value) if isinstance(value, datetime) else value
        for name, value in document.items()
    }
    names = {name: written.pop(name) for name in kept}
    cut: dict[str, Any] = cut_tokens(session_id, written)
    return names | cut


def _link(link: TaskLink | None) -> dict[str, Any] | None:
    if link is None:
        return None
    named = {"session_id": link.session_id, "task_id": link.task_id}
    return named | ({} if link.before is None else {"before": link.before})


def _rate(rate: Rate | None) -> dict[str, Any] | None:
    return None if rate is None else {"limit": rate.limit, "per_s": rate.per.total_seconds()}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
