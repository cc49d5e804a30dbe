"""The commands that read one task or session, and the workers: show, tree, tail, workers."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from redis_state.cli.client import SessionId, TaskId, client_of, found, missing
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, complain, or_exit, run
from redis_state.cli.output import brief, harmless, print_json, print_line, revealed_document
from redis_state.cli.tasks.printing import (
    branch_of,
    grow,
    print_parts,
    print_update,
    print_workers,
)
from redis_state.documents import task_document, view_document, worker_document
from redis_state.errors import ArchiveUnavailable, NotFound
from redis_state.models import StateUpdate, TaskState, TaskStatus
from redis_state.models.tasks import parent_of

if TYPE_CHECKING:
    from redis_state.worker import TaskClient, TaskView


@app.command()
def show(session: SessionId, task: TaskId, url: Url = None, as_json: AsJson = False) -> None:
    """Show one task: its status, steps, open pauses and children.

    One that Redis does not have is read from REDIS_STATE_ARCHIVE_URL. Status 3 if there is no such
    task, 5 if the archive would have to be read and is away.
    """

    async def look() -> tuple[TaskView, dict[str, Any]]:
        async with client_of(url) as client:
            view = await client.inspect(session, task)
            if view is None:
                raise missing(session, task)
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
            "pauses": [revealed_document(pause) for pause in pauses],
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
    print_parts(more, running)


@app.command()
def tree(
    session: SessionId,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Only this task and its children.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show which task of a session spawned which, also of archived ones. Status 3 if there is none.

    Without the archive, which is away, a line says so.
    """

    async def look() -> list[TaskState]:
        async with client_of(url) as client:
            if client.store.settings.has_archive:
                reader = client.store.archive
                try:
                    return await reader.soon(lambda: reader.tasks(session, fetch=False))
                except ArchiveUnavailable:
                    complain("the archive could not be read: archived tasks are not listed")
            return await client.store.list_tasks(session)

    states = run(look())
    known = {state.task_id for state in states}
    below: dict[str | None, list[TaskState]] = {}
    for state in states:
        parent = parent_of(state)
        below.setdefault(parent if parent in known else None, []).append(state)
    roots = below.get(None, []) if task is None else [one for one in states if one.task_id == task]
    if not roots:
        or_exit(lambda: _nothing(session, task))
    if as_json:
        print_json([branch_of(root, below) for root in roots])
        return
    top = Tree(Text(harmless(session)))
    for root in roots:
        grow(top, root, below)
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
            else:
                # A watcher waits for a server that is away. Who looks at the terminal hears of it.
                begin = await client.store.read_updates(session, limit=1)
                if follow and not begin.entries:
                    complain(f"session {session!r} has no updates: waiting for the first")
            updates = _updates(client, session, task, after, follow=follow)
            async with aclosing(updates):
                async for cursor, update in updates:
                    print_update(update, cursor, as_json=as_json)
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
        print_workers(infos)
    if here and any(info["stalled"] for info in infos):
        raise typer.Exit(ExitCode.FAILED)


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


def _nothing(session: str, task: str | None) -> None:
    if task is not None:
        raise missing(session, task)
    raise NotFound(f"session {harmless(session)!r} has no tasks")
