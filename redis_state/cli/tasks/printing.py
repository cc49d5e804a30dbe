"""How tasks, their parts and their workers are printed for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from redis_state.cli.output import (
    age,
    brief,
    deciders_of,
    form_lines,
    harmless,
    print_json,
    print_line,
    print_table,
    status_of,
)
from redis_state.documents import task_document, update_document
from redis_state.models import StateUpdate, TaskState

if TYPE_CHECKING:
    from redis_state.worker import OpenPause


def _versions(info: dict[str, Any]) -> str:
    """Write the versions that a worker serves, by handler."""
    return "; ".join(f"{name} {', '.join(known)}" for name, known in info["versions"].items())


def print_workers(infos: Sequence[dict[str, Any]]) -> None:
    """Print workers as a table."""
    columns = ("worker", "pid", "queues", "versions", "running", "of", "heard of", "polled", "")
    rows = [
        (
            info["name"],
            info["pid"],
            ", ".join(info["queues"]),
            _versions(info),
            info["running_count"],
            info["max_tasks"],
            f"{info['silent_s']:.0f} s ago",
            "" if info["unpolled_s"] is None else f"{info['unpolled_s']:.0f} s ago",
            "stalled" if info["stalled"] else "draining" if info["draining"] else "",
        )
        for info in infos
    ]
    print_table(columns, rows, none="No worker has been heard of lately.")


def print_parts(more: dict[str, Any], running: list[dict[str, Any]]) -> None:
    """Print the steps, pauses and children of a task, a line for each."""
    for step in more["steps"]:
        named = f"{step['version']}  {brief(step['step'])}  run {step['epoch']}"
        print_line(f"{'step':12}  {named}{_took(step)}")
    for undo in more["compensations"]:
        error = f"  {brief(undo['error'])}" if undo["error"] else ""
        print_line(f"{'compensation':12}  {brief(undo['name'])}  {undo['state']}{error}")
    for step in running:
        began, attempt = age(datetime.fromisoformat(step["began_at"])), step["attempt"]
        print_line(f"{'runs now':12}  {brief(step['step'])}  attempt {attempt}, for {began}")
    for pause in more["pauses"]:
        print_line(
            f"{'open pause':12}  {brief(pause['name'])}  {pause['pause_id'] or '(not shown)'}"
        )
        for each in pause["deciders"]:
            to = f" to {each['delegated_to']}" if each["delegated_to"] else ""
            print_line(f"{'decider':12}  {harmless(each['name'])}  {each['state']}{harmless(to)}")
    for child in more["children"]:
        print_line(f"{'child':12}  {harmless(child['task_id'])}  {child['status']}")


def print_update(update: StateUpdate, cursor: str, *, as_json: bool) -> None:
    """Print an update in a line, or as a document."""
    if as_json:
        print_json(update_document(update, cursor))
        return
    when = update.created_at.astimezone().strftime("%H:%M:%S")
    print_line(
        f"{when}  {harmless(update.task_id)}  {update.update_type.value:13}  "
        f"{brief(update.content)}"
    )


def print_tasks(states: Sequence[TaskState]) -> None:
    """Print tasks as a table."""
    columns = ("session", "task", "status", "priority", "changed", "description", "error")
    rows = [
        (
            state.session_id,
            state.task_id,
            status_of(state),
            state.priority,
            f"{age(state.updated_at)} ago",
            brief(state.description or ""),
            brief(state.error or ""),
        )
        for state in states
    ]
    print_table(columns, rows, none="No tasks.")


def print_pauses(pauses: Sequence[OpenPause]) -> None:
    """Print open pauses as a table."""
    columns = ("session", "task", "pause", "asks", "form", "deciders", "open for", "until", "id")
    rows = [
        (
            pause.session_id,
            pause.task_id,
            pause.name,
            brief(pause.payload if pause.payload is not None else pause.reason),
            brief(", ".join(form_lines(pause))),
            deciders_of(pause),
            age(pause.opened_at),
            f"in {age(pause.expires_at)}: {pause.on_timeout}",
            pause.pause_id or "(not shown)",
        )
        for pause in pauses
    ]
    print_table(columns, rows, none="No open pauses.")


def _took(step: dict[str, Any]) -> str:
    """Write when a step began, and how long it ran with all its attempts."""
    if not step["began_at"]:
        return ""
    began, ended = (datetime.fromisoformat(step[name]) for name in ("began_at", "at"))
    tries = f", {step['attempts']} attempts" if step["attempts"] > 1 else ""
    clock = began.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"  {clock}, {(ended - began).total_seconds():.3f} s{tries}"


def branch_of(state: TaskState, below: dict[str | None, list[TaskState]]) -> dict[str, Any]:
    """Return a task with its children as a document."""
    children = [branch_of(child, below) for child in below.get(state.task_id, [])]
    return task_document(state) | {"children": children}


def grow(top: Tree, state: TaskState, below: dict[str | None, list[TaskState]]) -> None:
    """Add a task with its children to a tree."""
    stated = " ".join(filter(None, (brief(state.description or ""), brief(state.error or ""))))
    branch = top.add(Text.assemble(harmless(state.task_id), "  ", status_of(state), "  ", stated))
    for child in below.get(state.task_id, []):
        grow(branch, child, below)
