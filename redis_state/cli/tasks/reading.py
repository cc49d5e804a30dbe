"""The commands that read: tasks, show, tree, tail, workers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Unpack

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from redis_state import RedisStateStore
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, complain, or_exit, run
from redis_state.cli.output import brief, harmless, print_json, print_line, revealed_document
from redis_state.cli.tasks.printing import (
    branch_of,
    grow,
    print_parts,
    print_pauses,
    print_tasks,
    print_update,
    print_workers,
)
from redis_state.documents import task_document, view_document, worker_document
from redis_state.errors import ArchiveUnavailable, CallerError, NotFound
from redis_state.models import StateUpdate, TaskState, TaskStatus
from redis_state.models.tasks import parent_of

if TYPE_CHECKING:
    from redis_state.worker import OpenPause, TaskClient, TaskFilters, TaskSummary, TaskView

T = TypeVar("T")

_PAGE = 1_000

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
        raise _missing(session_id, task_id)
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

    If there are more than --limit, a line on standard error says so.

    Try: `redis-state tasks`, `redis-state tasks -s SESSION --status FAILED`,
    `redis-state tasks --paused`, then `redis-state approve TOKEN`.
    """

    async def look() -> tuple[Sequence[TaskState], Sequence[OpenPause]]:
        if dead + paused + unserved > 1:
            raise CallerError("--dead, --paused and --unserved: one of them")
        if decider is not None and not paused:
            raise CallerError("--for needs --paused")
        if status and (paused or unserved):
            raise CallerError("--status: not with --paused and --unserved")
        ended = [one.value for one in status or () if one.is_terminal]
        if ended and session is None and not dead:
            raise CallerError(
                f"--status {ended[0]} needs --session: without it, unfinished tasks are listed; "
                f"`redis-state find --status {ended[0]}` lists those of all sessions"
            )
        most = limit + 1  # to know whether there are more
        async with client_of(url) as client:
            if paused:
                return [], await _paused(client, session, decider, most)
            if unserved:
                return await _unserved(client, session, most), []
            return await _listed(client, session, dead=dead, status=status, limit=most), []

    found, open_pauses = run(look())
    states, pauses = _at_most(limit, found), _at_most(limit, open_pauses)
    if as_json:
        print_json([*map(task_document, states), *map(revealed_document, pauses)])
    elif paused:
        print_pauses(pauses)
    else:
        print_tasks(states)


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
                raise _missing(session, task)
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


async def _unserved(client: TaskClient, session: str | None, limit: int) -> list[TaskState]:
    async def named(most: int) -> list[tuple[str, str]]:
        return [task for one in await client.unserved(limit=most) for task in one.tasks]

    wanted = await _first(named, lambda task: session in (None, task[0]), limit)
    loaded = await asyncio.gather(*(client.get(*task) for task in wanted))
    return [one for one in loaded if one is not None]


async def _first(
    read: Callable[[int], Awaitable[Sequence[T]]], wanted: Callable[[T], bool], limit: int
) -> list[T]:
    """Return the first that are wanted, of however many others stand before them."""
    most = limit
    while True:
        listed = await read(most)
        chosen = [one for one in listed if wanted(one)]
        if len(chosen) >= limit or len(listed) < most:
            return chosen[:limit]
        most *= 4


def _at_most(limit: int, found: Sequence[T]) -> Sequence[T]:
    if len(found) > limit:
        complain(f"there are more than {limit}: --limit lists more")
    return found[:limit]


async def _paused(
    client: TaskClient, session: str | None, decider: str | None, limit: int
) -> Sequence[OpenPause]:
    found: list[OpenPause] = []
    cursor: str | None = None
    while True:
        left = min(limit - len(found), _PAGE)
        page = await client.list_pauses(session, decider=decider, limit=left, after=cursor)
        found += page.pauses
        cursor = page.cursor
        if cursor is None or len(found) == limit:
            return found


async def _listed(
    client: TaskClient,
    session: str | None,
    *,
    dead: bool,
    status: Sequence[TaskStatus] | None,
    limit: int,
) -> Sequence[TaskState]:
    def wanted(one: TaskState) -> bool:
        return session in (None, one.session_id) and (not status or one.status in status)

    if dead:
        return await _dead(client, wanted, limit)
    if session is not None:
        return [*filter(wanted, await client.store.list_tasks(session))][:limit]
    return await _unfinished(client, status, limit)


async def _dead(
    client: TaskClient, wanted: Callable[[TaskState], bool], limit: int
) -> list[TaskState]:
    found: list[TaskState] = []
    cursor: str | None = None
    while True:
        page = await client.list_dead(limit=_PAGE, after=cursor)
        found += filter(wanted, page.tasks)
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return found[:limit]


async def _unfinished(
    client: TaskClient, status: Sequence[TaskStatus] | None, limit: int
) -> list[TaskState]:
    statuses = [one for one in status or TaskStatus if not one.is_terminal]
    found: list[TaskState] = []
    async with aclosing(pages_of(client, limit, status=statuses)) as pages:
        async for tasks in pages:
            loads = (client.get(task.session_id, task.task_id) for task in tasks)
            states = await asyncio.gather(*loads)
            found += [one for one in states if one is not None and one.status in statuses]
            if len(found) >= limit:
                break
    return found[:limit]


async def pages_of(
    client: TaskClient, limit: int, **filters: Unpack[TaskFilters]
) -> AsyncGenerator[Sequence[TaskSummary], None]:
    """Yield tasks of some statuses, a page at a time, the one made first, first.

    A task that matches all the time comes once, whatever changes meanwhile. Of no status none is.
    """
    cursor, more = None, bool(filters.get("status"))
    while more:
        page = await client.find(
            newest_first=False, limit=min(limit, _PAGE), after=cursor, **filters
        )
        yield page.tasks
        cursor = page.cursor
        more = cursor is not None


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


def _missing(session_id: str, task_id: str) -> NotFound:
    return NotFound(f"session {harmless(session_id)!r} has no task {harmless(task_id)!r}")


def _nothing(session: str, task: str | None) -> None:
    if task is not None:
        raise _missing(session, task)
    raise NotFound(f"session {harmless(session)!r} has no tasks")
