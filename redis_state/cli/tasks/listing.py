"""The command that lists tasks, and how it reads page after page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, TypeVar, Unpack

import typer

from redis_state.cli.client import OfSession, client_of
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import complain, run
from redis_state.cli.output import print_json, revealed_document
from redis_state.cli.tasks.printing import print_pauses, print_tasks
from redis_state.documents import task_document
from redis_state.errors import CallerError
from redis_state.models import TaskState, TaskStatus

if TYPE_CHECKING:
    from redis_state.worker import OpenPause, TaskClient, TaskFilters, TaskSummary

T = TypeVar("T")

_PAGE = 1_000


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
