"""The commands that read: tasks, show, tree, tail, workers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from redis_state import RedisStateStore
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, or_exit, run
from redis_state.cli.output import (
    age,
    brief,
    deciders_of,
    form_lines,
    harmless,
    parent_of,
    pause_document,
    print_json,
    print_line,
    print_table,
    status_of,
    task_document,
    update_document,
    view_document,
    worker_document,
)
from redis_state.errors import CallerError, NotFound
from redis_state.models import StateUpdate, TaskState, TaskStatus

if TYPE_CHECKING:
    from redis_state.worker import OpenPause, TaskClient, TaskView

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The task's session.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]
OfSession = Annotated[str | None, typer.Option("--session", "-s", help="Only of this session.")]


@asynccontextmanager
async def client_of(url: str | None) -> AsyncGenerator[TaskClient, None]:
    """Open a client of the server that a command names."""
    from redis_state.worker import TaskClient  # noqa: PLC0415 - needs the extra

    async with RedisStateStore.from_url(url) as store, TaskClient(store) as client:
        yield client


async def found(client: TaskClient, session_id: str, task_id: str) -> TaskState:
    """Return a task. Errors: NotFound."""
    state = await client.get(session_id, task_id)
    if state is None:
        raise NotFound(f"session {harmless(session_id)!r} has no task {harmless(task_id)!r}")
    return state


@app.command()
def tasks(
    session: OfSession = None,
    status: Annotated[
        list[TaskStatus] | None,
        typer.Option(case_sensitive=False, help="Only in this status; may be repeated."),
    ] = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="Dead letters: tasks whose workers kept dying.")
    ] = False,
    paused: Annotated[
        bool, typer.Option("--paused", help="Open pauses, with the ids that decide them.")
    ] = False,
    unserved: Annotated[
        bool, typer.Option("--unserved", help="Those that wait for workers with their version.")
    ] = False,
    decider: Annotated[
        str | None, typer.Option("--for", help="With --paused: what this actor may decide now.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most to list.")] = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List all tasks of a session, or the unfinished tasks of all sessions.

    Try: `redis-state tasks`, `redis-state tasks -s SESSION --status FAILED`,
    `redis-state tasks --paused`, then `redis-state approve TOKEN`.
    """

    async def look() -> tuple[Sequence[TaskState], Sequence[OpenPause]]:
        if dead + paused + unserved > 1:
            raise CallerError("--dead, --paused and --unserved: one of them")
        if decider is not None and not paused:
            raise CallerError("--for needs --paused")
        async with client_of(url) as client:
            if paused:
                return [], (await client.pauses(session, decider=decider))[:limit]
            if unserved:
                return await _unserved(client, session, limit), []
            return await _listed(client, session, dead=dead, status=status, limit=limit), []

    states, pauses = run(look())
    if as_json:
        print_json([*map(task_document, states), *map(pause_document, pauses)])
    elif paused:
        _print_pauses(pauses)
    else:
        _print_tasks(states)


@app.command()
def show(session: SessionId, task: TaskId, url: Url = None, as_json: AsJson = False) -> None:
    """Show one task: its status, steps, open pauses and children.

    Status 3 if there is no such task.
    """

    async def look() -> tuple[TaskView, dict[str, Any]]:
        async with client_of(url) as client:
            await found(client, session, task)
            view = await client.inspect(session, task)
            if view is None:
                raise NotFound("the task is gone")
            pauses = [one for one in await client.pauses(session) if one.task_id == task]
            children = await client.children(session, task)
            steps = await client.snapshots(session, task)
            undos = await client.compensations(session, task)
        return view, {
            "steps": [
                {
                    "version": step.version,
                    "step": step.step,
                    "epoch": step.epoch,
                    "size": step.size,
                    "began_at": step.began_at and step.began_at.isoformat(),
                    "at": step.at.isoformat(),
                    "attempts": step.attempts,
                }
                for step in steps
            ],
            "pauses": [pause_document(pause) for pause in pauses],
            "children": [task_document(child) for child in children],
            "compensations": [
                {"name": undo.name, "state": undo.state, "error": undo.error} for undo in undos
            ],
        }

    view, more = run(look())
    document = view_document(view)
    if as_json:
        print_json(document | more)
        return
    running = document.pop("running")
    facts = {name: value for name, value in document.items() if value not in (None, False, {})}
    for name, value in facts.items():
        print_line(f"{name:12}  {brief(value)}")
    _print_parts(more, running)


@app.command()
def tree(
    session: SessionId,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Only this task and its children.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show which task of a session spawned which. Status 3 if there is none."""

    async def look() -> list[TaskState]:
        async with client_of(url) as client:
            if task is not None:
                await found(client, session, task)
            return await client.store.list_tasks(session)

    states = run(look())
    known = {state.task_id for state in states}
    below: dict[str | None, list[TaskState]] = {}
    for state in states:
        parent = parent_of(state)
        below.setdefault(parent if parent in known else None, []).append(state)
    roots = below.get(None, []) if task is None else [one for one in states if one.task_id == task]
    if not roots:
        or_exit(lambda: _nothing(session))
    if as_json:
        print_json([_branch(root, below) for root in roots])
        return
    top = Tree(Text(harmless(session)))
    for root in roots:
        _grow(top, root, below)
    console = Console(soft_wrap=True)
    console.print(top)


@app.command()
def tail(
    session: SessionId,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Only this task, until it is terminal.")
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor of --json.")
    ] = None,
    follow: Annotated[
        bool, typer.Option(help="Wait for new updates, or end after the stored ones.")
    ] = True,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one document per line.")] = False,
) -> None:
    """Print the updates of a task until it is terminal, or of a session until interrupted.

    Status 0 if the task is COMPLETE, 1 if it is FAILED or CANCELLED, 3 if there is no such task.
    """

    async def print_all() -> TaskState | None:
        async with client_of(url) as client:
            if task is not None:
                await found(client, session, task)
            updates = _updates(client, session, task, after, follow=follow)
            async with aclosing(updates):
                async for cursor, update in updates:
                    _print_update(update, cursor, as_json=as_json)
            return await client.get(session, task) if task is not None and follow else None

    ended = run(print_all())
    if ended is not None and ended.status is not TaskStatus.COMPLETE:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def workers(
    here: Annotated[
        bool, typer.Option("--here", help="Only those of this host: a health check of a worker.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the live worker processes and what they run.

    With --here, status 3 if this host has none, and 1 if one of them takes no tasks.
    """

    async def look() -> list[dict[str, Any]]:
        async with client_of(url) as client:
            found = await client.workers()
        host = socket.gethostname()
        found = [info for info in found if not here or info.host == host]
        if here and not found:
            raise NotFound(f"no worker on {host} has reported lately")
        return [worker_document(info) for info in found]

    infos = run(look())
    if as_json:
        print_json(infos)
    else:
        _print_workers(infos)
    if here and any(info["stalled"] for info in infos):
        raise typer.Exit(ExitCode.FAILED)


def _versions(info: dict[str, Any]) -> str:
    """Write the versions that a worker serves, by handler."""
    return "; ".join(f"{name} {', '.join(known)}" for name, known in info["versions"].items())


def _print_workers(infos: Sequence[dict[str, Any]]) -> None:
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


def _print_parts(more: dict[str, Any], running: list[dict[str, Any]]) -> None:
    for step in more["steps"]:
        named = f"{step['version']}  {brief(step['step'])}  run {step['epoch']}"
        print_line(f"{'step':12}  {named}{_took(step)}")
    for undo in more["compensations"]:
        error = f"  {undo['error']}" if undo["error"] else ""
        print_line(f"{'compensation':12}  {brief(undo['name'])}  {undo['state']}{error}")
    for step in running:
        began, attempt = age(datetime.fromisoformat(step["began_at"])), step["attempt"]
        print_line(f"{'runs now':12}  {brief(step['step'])}  attempt {attempt}, for {began}")
    for pause in more["pauses"]:
        print_line(
            f"{'open pause':12}  {brief(pause['pause'])}  {pause['pause_id'] or '(not shown)'}"
        )
        for each in pause["deciders"]:
            to = f" to {each['delegated_to']}" if each["delegated_to"] else ""
            print_line(f"{'decider':12}  {harmless(each['name'])}  {each['state']}{harmless(to)}")
    for child in more["children"]:
        print_line(f"{'child':12}  {child['task_id']}  {child['status']}")


async def _unserved(client: TaskClient, session: str | None, limit: int) -> list[TaskState]:
    listed = [task for one in await client.unserved(limit=limit) for task in one.tasks]
    wanted = [task for task in listed if session in (None, task[0])]
    loaded = await asyncio.gather(*(client.get(*task) for task in wanted))
    return [one for one in loaded if one is not None][:limit]


async def _listed(
    client: TaskClient,
    session: str | None,
    *,
    dead: bool,
    status: Sequence[TaskStatus] | None,
    limit: int,
) -> Sequence[TaskState]:
    if dead:
        listed = await client.dead(limit=limit)
        listed = [one for one in listed if session in (None, one.session_id)]
    elif session is not None:
        listed = await client.store.list_tasks(session)
    else:
        listed = await client.unfinished(limit=limit)
    return [one for one in listed if not status or one.status in status][:limit]


async def _updates(
    client: TaskClient, session: str, task: str | None, after: str | None, *, follow: bool
) -> AsyncGenerator[tuple[str, StateUpdate], None]:
    if follow:
        live = (
            client.store.watch_updates(session, after=after)
            if task is None
            else client.watch(session, task, after=after)
        )
        async with aclosing(live):
            async for entry in live:
                yield entry.cursor, entry.value
        return
    at_end = False
    while not at_end:
        page = await client.store.read_updates(session, after=after, task_id=task)
        for entry in page.entries:
            yield entry.cursor, entry.value
        after, at_end = page.cursor, page.at_end


def _print_update(update: StateUpdate, cursor: str, *, as_json: bool) -> None:
    if as_json:
        print_json(update_document(update, cursor))
        return
    when = update.created_at.astimezone().strftime("%H:%M:%S")
    print_line(
        f"{when}  {harmless(update.task_id)}  {update.update_type.value:13}  "
        f"{brief(update.content)}"
    )


def _print_tasks(states: Sequence[TaskState]) -> None:
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


def _print_pauses(pauses: Sequence[OpenPause]) -> None:
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


def _nothing(session: str) -> None:
    raise NotFound(f"session {harmless(session)!r} has no tasks")


def _branch(state: TaskState, below: dict[str | None, list[TaskState]]) -> dict[str, Any]:
    children = [_branch(child, below) for child in below.get(state.task_id, [])]
    return task_document(state) | {"children": children}


def _grow(top: Tree, state: TaskState, below: dict[str | None, list[TaskState]]) -> None:
    stated = " ".join(filter(None, (brief(state.description or ""), brief(state.error or ""))))
    branch = top.add(Text.assemble(harmless(state.task_id), "  ", status_of(state), "  ", stated))
    for child in below.get(state.task_id, []):
        _grow(branch, child, below)
