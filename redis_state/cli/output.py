"""What the commands print: documents for programs, tables for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_state.models import StateUpdate, TaskState, TaskStatus
from redis_state.serialization import codec

if TYPE_CHECKING:
    from redis_state.worker import OpenPause, TaskLink, TaskSummary, TaskView, WorkerInfo

_STYLES = {
    TaskStatus.PENDING: "cyan",
    TaskStatus.RUNNING: "blue",
    TaskStatus.PAUSED: "yellow",
    TaskStatus.COMPLETE: "green",
    TaskStatus.FAILED: "red",
    TaskStatus.CANCELLED: "magenta",
}
_LONGEST = 60
_WIDEST = 10_000


def print_json(document: Any) -> None:
    """Print one document on one line, unbuffered, for programs that follow."""
    print(codec.encode(document).decode(), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, none: str) -> None:
    """Print rows under their columns, or ``none`` without rows. Ids are never shortened."""
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("session", "task", "id"))
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_text(cell)) for cell in row))
    if not table.row_count:
        print_line(none)
        return
    # As wide as it has to be: what is copied from it must be whole.
    width = Console(width=_WIDEST).measure(table).maximum
    Console(width=max(width, Console().width)).print(table)


def print_line(text: str) -> None:
    """Print a line as it is."""
    print(text, flush=True)


def status_of(state: TaskState) -> Text:
    """Write a task's state in its colour."""
    return coloured(state.status)


def coloured(status: TaskStatus) -> Text:
    """Write a status in its colour."""
    return Text(status.value, style=_STYLES[status])


def task_document(state: TaskState) -> dict[str, Any]:
    """Write a task as JSON."""
    return {
        "session_id": state.session_id,
        "task_id": state.task_id,
        "status": state.status.value,
        "priority": state.priority,
        "description": state.description,
        "parent": parent_of(state),
        "error": state.error,
        "result": state.result,
        "created_at": state.created_at.isoformat(),
        "updated_at": state.updated_at.isoformat(),
    }


def view_document(view: TaskView) -> dict[str, Any]:
    """Write a task with what its workers know of it as JSON."""
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
            {"step": step.step, "attempt": step.attempt, "began_at": step.began_at.isoformat()}
            for step in view.running
        ],
    }


def summary_document(task: TaskSummary) -> dict[str, Any]:
    """Write a task that was found as JSON."""
    return {
        "session_id": task.session_id,
        "task_id": task.task_id,
        "status": task.status.value,
        "handler": task.handler,
        "attributes": dict(task.attributes),
        "created_at": task.created_at.isoformat(),
        "updated_at": task.updated_at.isoformat(),
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
    }


def link_document(link: TaskLink | None) -> dict[str, Any] | None:
    """Write the task that another one was made from as JSON."""
    if link is None:
        return None
    named = {"session_id": link.session_id, "task_id": link.task_id}
    return named | ({} if link.before is None else {"before": link.before})


def pause_document(pause: OpenPause) -> dict[str, Any]:
    """Write an open pause as JSON, with what decides it, if that was revealed."""
    return {
        "session_id": pause.session_id,
        "task_id": pause.task_id,
        "pause": pause.name,
        "reason": pause.reason,
        "payload": pause.payload,
        "tags": list(pause.tags),
        "opened_at": pause.opened_at.isoformat(),
        "expires_at": pause.expires_at.isoformat(),
        "on_timeout": pause.on_timeout,
        "pause_id": pause.pause_id,
        "token": pause.token,
        "schema": pause.schema,
        "approvals": pause.approvals,
        "rejections": pause.rejections,
        "deciders": [
            {
                "name": each.name,
                "state": each.state,
                "at": each.at.isoformat() if each.at else None,
                "delegated_to": each.delegated_to,
            }
            for each in pause.deciders
        ],
        "escalations": [
            {
                "at": each.at.isoformat(),
                "to": list(each.to),
                "replace": each.replace,
                "done": each.done,
            }
            for each in pause.escalations
        ],
    }


def form_lines(pause: OpenPause) -> list[str]:
    """Write the form of a pause for a person: one line for each field, or the schema itself."""
    schema = pause.schema
    if schema is None:
        return []
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return [f"value: {brief(schema)}"]
    needed = cast("Any", required) if isinstance(required, list) else ()
    return [
        f"{harmless(name)}{' (required)' if name in needed else ''}: {brief(rules)}"
        for name, rules in cast("dict[str, Any]", properties).items()
    ]


def deciders_of(pause: OpenPause) -> str:
    """Write who decides a pause, and how they have voted."""
    if not pause.deciders:
        return ""
    named = [
        f"{harmless(each.name)}: {each.state}"
        + (f" to {harmless(each.delegated_to)}" if each.delegated_to else "")
        for each in pause.deciders
    ]
    return f"{pause.approvals} of {', '.join(named)}"


def update_document(update: StateUpdate, cursor: str) -> dict[str, Any]:
    """Write an update as JSON, with the cursor that reads on after it."""
    return {
        "cursor": cursor,
        "task_id": update.task_id,
        "type": update.update_type.value,
        "content": update.content,
        "step": update.step_index,
        "total": update.total_steps,
        "at": update.created_at.isoformat(),
    }


def worker_document(info: WorkerInfo) -> dict[str, Any]:
    """Write a worker as JSON."""
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


def parent_of(state: TaskState) -> str | None:
    """Return the task that has spawned this one, if it says so."""
    spawned_from = state.context_snapshot.spawned_from_task_id
    return None if spawned_from in ("foreground", state.task_id) else spawned_from


def age(moment: datetime) -> str:
    """Write how long ago a moment is, or how soon, in one unit."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = abs((datetime.now(UTC) - aware).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def brief(value: Any) -> str:
    """Write a value on one line, the start of it if it is long."""
    text = value if isinstance(value, str) else json.dumps(codec.plain(value), ensure_ascii=False)
    text = harmless(" ".join(text.split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def harmless(text: str) -> str:
    """Leave out what a terminal would obey, or cannot show."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _text(value: Any) -> str:
    return "" if value is None else harmless(str(value))
