"""The commands submit, find and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from redis_state.cli.arguments import json_of, length_of, moment_of
from redis_state.cli.client import OfSession, client_of
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import Making, complain, run
from redis_state.cli.output import age, brief, coloured, print_json, print_line, print_table
from redis_state.cli.tasks.filters import (
    Attribute,
    Before,
    EndedSince,
    EndedUntil,
    Handler,
    Since,
    Statuses,
    filters,
)
from redis_state.documents import summary_document
from redis_state.errors import CallerError
from redis_state.models import TaskStatus
from redis_state.models.attributes import read_attributes
from redis_state.models.tasks import new_id

if TYPE_CHECKING:
    from redis_state.worker import FoundPage, SessionTasks, TaskSummary

Limit = Annotated[int, typer.Option(min=1, max=1000, help="The most to list.")]
After = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="Continue after the page with this cursor.")
]


# As `OnBusy`, which is not imported here: it needs the worker's packages.
Busy = Literal["enqueue", "reject", "interrupt", "replace"]


@app.command()
def submit(
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")],
    task_input: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="The input, as JSON. Default: null.")
    ] = None,
    session: Annotated[
        str, typer.Option("--session", "-s", help="The session of the task.")
    ] = "default",
    task_id: Annotated[
        str | None,
        typer.Option("--id", help="The task's id. Repeating the command with it submits one task."),
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute", "-a", metavar="NAME=VALUE", help="What it is found by; may be repeated."
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The queue that it waits in.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Begin after it: 90s, 15m, 6h or 1d.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin at an ISO time, in UTC by default.")
    ] = None,
    limit_key: Annotated[
        str | None, typer.Option("--limit-key", help="Whose limits hold for it, see queues limit.")
    ] = None,
    in_turn: Annotated[
        bool, typer.Option("--in-turn", help="Tasks of the session that have it run one at a time.")
    ] = False,
    on_busy: Annotated[
        Busy | None,
        typer.Option("--on-busy", help="What happens if such a task is unfinished."),
    ] = None,
    priority: Annotated[int, typer.Option(help="A higher one is more urgent.")] = 0,
    description: Annotated[str | None, typer.Option(help="What people read of it.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the result and print it as JSON.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task for a handler of the pool and print its id.

    With --wait, status 1 if it is FAILED or CANCELLED. Status 4 if a task of the id is there, with
    another handler or input. If no reply comes, an error names the id to repeat the command with.

    Try: `redis-state submit review '{"text": "…"}' -s SESSION -a tenant=acme`, then
    `redis-state tail SESSION TASK`.
    """
    named = new_id() if task_id is None else task_id
    making = Making.named("--id", named)

    async def do() -> tuple[str, Any]:
        content = None if task_input is None else json_of("INPUT", task_input)
        async with client_of(url) as client:
            found = await client.submit_or_find(
                handler,
                content,
                session_id=session,
                task_id=named,
                priority=priority,
                description=description,
                queue=queue,
                delay=None if delay is None else length_of("--delay", delay),
                at=None if at is None else moment_of("--at", at),
                limit_key=limit_key,
                in_turn=in_turn,
                on_busy=on_busy,
                attributes=read_attributes("--attribute", attribute or ()),
            )
            made = found.task_id
            making.made = f"submitted as task {made!r} of session {session!r}, which continues"
            return made, await client.result(session, made) if wait else None

    made, result = run(do(), making=making)
    if as_json:
        print_json({"session_id": session, "task_id": made} | ({"result": result} if wait else {}))
    elif wait:
        print_json(result)
    else:
        print_line(made)


@app.command()
def find(
    status: Statuses = None,
    handler: Handler = None,
    session: OfSession = None,
    attribute: Attribute = None,
    since: Since = None,
    until: Before = None,
    ended_since: EndedSince = None,
    ended_until: EndedUntil = None,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="The oldest first, not the newest.")
    ] = False,
    archived: Annotated[
        bool, typer.Option("--archived", help="Also tasks that are only in the archive by now.")
    ] = False,
    archived_only: Annotated[bool, typer.Option("--archived-only", help="Only those.")] = False,
    count: Annotated[
        bool,
        typer.Option("--count", help="Count by status instead; with one filter at most."),
    ] = False,
    limit: Limit = 50,
    after: After = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Find tasks of all sessions, also terminal ones for as long as they are kept.

    A page costs the same however many tasks there are. The last line has the option for the next
    page. With --ended-since or --ended-until terminal tasks alone, the last that ended first. With
    --archived also what has left for the archive of REDIS_STATE_ARCHIVE_URL. If that is away, a
    line says so.

    Try: `redis-state find --status FAILED --ended-since 1h`, `redis-state find --handler review -a
    tenant=acme`, `redis-state find --count --handler review`, then `redis-state show SESSION TASK`
    or `redis-state retry SESSION TASK`.
    """

    async def look() -> tuple[FoundPage | None, dict[TaskStatus, int]]:
        chosen = filters(
            session=session,
            status=status,
            handler=handler,
            attribute=attribute,
            since=since,
            until=until,
            ended_since=ended_since,
            ended_until=ended_until,
        )
        async with client_of(url) as client:
            if count:
                if status or since or until or archived or archived_only:
                    raise CallerError(
                        "--count takes a handler, a session, an attribute or times of the end only"
                    )
                counted = await client.count(
                    handler=handler,
                    session_id=session,
                    attributes=chosen.get("attributes"),
                    ended_after=chosen.get("ended_after"),
                    ended_before=chosen.get("ended_before"),
                )
                return None, counted
            page = await client.find(
                newest_first=not oldest_first,
                limit=limit,
                after=after,
                archived="only" if archived_only else "also" if archived else "no",
                **chosen,
            )
            return page, {}

    page, counted = run(look())
    if page is None:
        _print_counts(counted, as_json=as_json)
        return
    if page.incomplete:
        complain("the archive could not be read: archived tasks are not listed")
    if as_json:
        tasks = [*map(summary_document, page.tasks)]
        print_json({"tasks": tasks, "cursor": page.cursor, "incomplete": page.incomplete})
    else:
        _print_found(page.tasks, by_end=bool(ended_since or ended_until))
        _print_more(page.cursor)


@app.command()
def sessions(
    limit: Limit = 50, after: After = None, url: Url = None, as_json: AsJson = False
) -> None:
    """List the sessions that have tasks, with the number of tasks in each status.

    Agents' sessions are listed by `redis-state session list`.

    Try: `redis-state sessions`, then `redis-state tasks -s SESSION`.
    """

    async def look() -> tuple[Sequence[SessionTasks], str | None]:
        async with client_of(url) as client:
            page = await client.sessions(limit=limit, after=after)
            return page.sessions, page.cursor

    found, cursor = run(look())
    if as_json:
        documents = [
            {
                "session_id": each.session_id,
                "counts": {status.value: number for status, number in each.counts.items()},
                "newest_at": each.newest_at.isoformat(),
            }
            for each in found
        ]
        print_json({"sessions": documents, "cursor": cursor})
        return
    columns = ("session", *(status.value for status in TaskStatus), "newest")
    rows = [
        (each.session_id, *(each.counts[status] for status in TaskStatus), _ago(each.newest_at))
        for each in found
    ]
    print_table(columns, rows, none="No sessions have tasks.")
    _print_more(cursor)


def _print_counts(counted: dict[TaskStatus, int], *, as_json: bool) -> None:
    if as_json:
        print_json({status.value: number for status, number in counted.items()})
        return
    rows = [(coloured(status), number) for status, number in counted.items()]
    print_table(("status", "tasks"), rows, none="No tasks.")


def _print_found(found: Sequence[TaskSummary], *, by_end: bool) -> None:
    time = "ended" if by_end else "made"
    columns = ("session", "task", "status", "handler", time, "attributes", "error")
    rows = [
        (
            task.session_id,
            task.task_id,
            coloured(task.status).append(" archived" if task.archived else ""),
            task.handler or "-",
            _ago(task.updated_at if by_end else task.created_at),
            " ".join(f"{name}={brief(value)}" for name, value in task.attributes.items()),
            brief(task.error or ""),
        )
        for task in found
    ]
    print_table(columns, rows, none="No tasks.")


def _print_more(cursor: str | None) -> None:
    if cursor is not None:
        print_line(f"more: --after {cursor}")


def _ago(moment: Any) -> str:
    return f"{age(moment)} ago"
