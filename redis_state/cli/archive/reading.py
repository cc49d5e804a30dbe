"""Reading the archive: its tasks, and what belongs to a session or a trace, with what Redis has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import typer

from redis_state.archive import ArchivedTask, ArchiveReader, KeptArtifact
from redis_state.archive.model import TaskEnd
from redis_state.cli.archive.group import archive, reading
from redis_state.cli.commands import AsJson, Url
from redis_state.cli.exit_codes import run
from redis_state.cli.output import (
    age,
    brief,
    coloured,
    harmless,
    print_json,
    print_line,
    print_table,
)
from redis_state.cli.tasks.filters import read_moment
from redis_state.documents import task_document, update_document
from redis_state.errors import CursorGap, TaskUnknown
from redis_state.models import TaskStatus

_PAGE = 500


@archive.command()
def tasks(
    session: Annotated[str | None, typer.Option("--session", help="Only this session.")] = None,
    handler: Annotated[str | None, typer.Option(help="Only of this handler.")] = None,
    status: Annotated[list[TaskStatus] | None, typer.Option(help="May be repeated.")] = None,
    trace: Annotated[str | None, typer.Option(help="Only of this trace.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only those ended since: 30m, 2h, 7d, or an ISO time."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only those ended before: likewise.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List archived tasks, the last that ended first."""

    async def look() -> list[_ShownTask]:
        found: list[_ShownTask] = []
        ended_after, ended_before = read_moment("--since", since), read_moment("--until", until)
        async with reading(url) as (_, reader):
            after: TaskEnd | None = None
            while left := limit - len(found):
                page = await reader.find(
                    session_id=session,
                    handler=handler,
                    trace_id=trace,
                    status=status or (),
                    ended_after=ended_after,
                    ended_before=ended_before,
                    after=after,
                    limit=left,
                )
                if not page:
                    break
                found += [_listed(task) for task in page]
                after = page[-1].end
        return found

    found = run(look())
    if as_json:
        print_json([each.summary for each in found])
        return
    rows = [each.row for each in found]
    print_table(("session", "task", "status", "handler", "ended"), rows, none="no archived tasks")


@archive.command()
def show(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    task: Annotated[str, typer.Argument(metavar="TASK")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show a task, from Redis or the archive, and its updates.

    It says how many updates of the session are missing: neither has them any more.
    """

    async def look() -> dict[str, Any]:
        async with reading(url) as (_, reader):
            state = await reader.task(session, task)
            if state is None:
                raise TaskUnknown(task)
            found = await _updates(reader, session, task=task)
            return task_document(state) | {"updates": found.updates, "missed": found.missed}

    found = run(look())
    if as_json:
        print_json(found)
        return
    updates, missed = found.pop("updates"), found.pop("missed")
    print_table(("what", "is"), list(found.items()), none="")
    rows = [(each["at"], each["type"], brief(each["content"])) for each in updates]
    print_table(("at", "update", "content"), rows, none="no updates")
    _print_missed(missed)


@archive.command()
def updates(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    after: Annotated[
        str | None, typer.Option(help="Only what follows this cursor; else from the first one.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most.")] = 1000,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the first updates of a session, of the archive and Redis, also of one without tasks.

    It says how many after the cursor, or between them, neither has any more, and from which cursor
    on more follow.
    """

    async def look() -> _ReadUpdates:
        async with reading(url) as (_, reader):
            return await _updates(reader, session, after=after, limit=limit)

    found = run(look())
    if as_json:
        print_json(found._asdict())
        return
    rows = [
        (each["at"], each["task_id"], each["type"], brief(each["content"]))
        for each in found.updates
    ]
    print_table(("at", "task", "update", "content"), rows, none="no updates")
    _print_missed(found.missed)
    if found.more:
        print_line(harmless(f"more follow: --after {found.cursor}"))


@archive.command()
def events(
    trace: Annotated[str, typer.Argument(metavar="TRACE")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most.")] = 1000,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the first audit events of a trace, of the archive and Redis, in the order of its log.

    It says how many rows of the log before them neither has, and whether more follow.
    """

    async def look() -> tuple[list[Any], int, bool]:
        found: list[Any] = []
        missed, after = 0, None
        async with reading(url) as (_, reader):
            while True:
                left = limit - len(found)
                page = await reader.events(trace, after=after, limit=left or 1)
                if not page.events or not left:
                    return found, missed, bool(page.events)
                found += [
                    asdict(each)
                    if as_json
                    else (each.ts, each.kind, each.node_name or "", brief(each.payload))
                    for each in page.events
                ]
                missed, after = missed + page.missed, page.cursor

    found, missed, more = run(look())
    if as_json:
        print_json({"events": found, "missed": missed, "more": more})
        return
    print_table(("ts", "kind", "node", "payload"), found, none="no events")
    if missed:
        print_line(harmless(f"{missed} rows are missing"))
    if more:
        print_line(harmless("more follow: --limit"))


@archive.command()
def artifacts(
    session: Annotated[str, typer.Argument(metavar="SESSION")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the artifacts of a session, of Redis and the archive, the oldest first.

    The archive has their references. It says of which Redis still has the bytes.
    """

    async def look() -> list[dict[str, Any]]:
        async with reading(url) as (_, reader):
            return [_artifact(each) for each in await reader.artifacts(session)]

    found = run(look())
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["id"],
            each["filename"] or "",
            each["mime_type"] or "",
            each["size_bytes"],
            each["made_at"] or "",
            "yes" if each["stored"] else "no",
        )
        for each in found
    ]
    head = ("artifact", "file", "type", "bytes", "made", "stored")
    print_table(head, rows, none="no artifacts")


class _ShownTask(NamedTuple):
    """What is shown of a task. Its record is not kept: a page of them is bounded in bytes."""

    summary: dict[str, Any]
    row: tuple[Any, ...]


def _artifact(kept: KeptArtifact) -> dict[str, Any]:
    ref: dict[str, Any] = kept.ref.model_dump(mode="json")
    made_at = None if kept.made_at is None else kept.made_at.isoformat()
    return ref | {"made_at": made_at, "stored": kept.stored}


class _ReadUpdates(NamedTuple):
    """Updates that were read, and how many the session lacks among them: None for some."""

    updates: list[dict[str, Any]]
    missed: int | None
    cursor: str | None
    more: bool


def _print_missed(missed: int | None) -> None:
    if missed != 0:
        print_line(f"{'some' if missed is None else missed} updates of the session are missing")


async def _updates(
    reader: ArchiveReader,
    session: str,
    *,
    task: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> _ReadUpdates:
    """Read updates of a session, or of one of its tasks, up to a limit."""
    found: list[dict[str, Any]] = []
    missed: int | None = 0
    at_end = False
    while not at_end and (limit is None or len(found) < limit):
        most = _PAGE if limit is None else min(_PAGE, limit - len(found))
        try:
            page = await reader.updates(session, after=after, limit=most, task_id=task)
        except CursorGap as gap:
            if gap.resume_after == after:
                raise
            missed = None if missed is None or gap.missed is None else missed + gap.missed
            after = gap.resume_after
            continue
        found += [update_document(each.value, each.cursor) for each in page.entries]
        after, at_end = page.cursor, page.at_end
    more = not at_end and await _has_more(reader, session, task, after)
    return _ReadUpdates(found, missed, after, more)


async def _has_more(
    reader: ArchiveReader, session: str, task: str | None, after: str | None
) -> bool:
    try:
        page = await reader.updates(session, after=after, limit=1, task_id=task)
    except CursorGap:
        return True
    return bool(page.entries) or not page.at_end


def _listed(task: ArchivedTask) -> _ShownTask:
    row = (
        task.session_id,
        task.task_id,
        coloured(task.status),
        task.handler or "-",
        age(task.ended_at),
    )
    return _ShownTask(_summary(task), row)


def _summary(task: ArchivedTask) -> dict[str, Any]:
    return {
        "session_id": task.session_id,
        "task_id": task.task_id,
        "status": task.status.value,
        "handler": task.handler or None,
        "created_at": task.created_at.isoformat(),
        "ended_at": task.ended_at.isoformat(),
        "attributes": dict(task.attributes),
        "trace_id": task.trace_id,
    }
