"""The commands of the archive: what is there, what waits to be, and archiving by hand."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import typer

from redis_state import RedisStateStore
from redis_state.archive import ArchivedTask, ArchiveReader, KeptArtifact
from redis_state.archive.identity import KnownArchive
from redis_state.archive.model import ArchiveStatus, TaskEnd
from redis_state.archive.retaining import Retainer
from redis_state.archive.retention import RetentionReport
from redis_state.archive.waiting import ArchiveList
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, complain, run
from redis_state.cli.output import (
    age,
    brief,
    coloured,
    harmless,
    print_json,
    print_line,
    print_table,
)
from redis_state.cli.servers.archiving import (
    archive_due,
    archive_once_more,
    follow_until_ended,
)
from redis_state.cli.tasks.filters import read_moment
from redis_state.documents import task_document, update_document
from redis_state.erasure import ReleaseReport, release_held
from redis_state.errors import ArchiveUnavailable, ConfigError, CursorGap, TaskUnknown
from redis_state.models import TaskStatus
from redis_state.stores.archive_list import RecordList

archive: typer.Typer = typer.Typer(
    name="archive",
    help="What has ended, in the archive of REDIS_STATE_ARCHIVE_URL.",
    no_args_is_help=True,
)
app.add_typer(archive)

Session = Annotated[str | None, typer.Option("--session", help="Only this session.")]
_PAGE = 500


@asynccontextmanager
async def _reading(
    url: str | None, *, changes: bool = False
) -> AsyncGenerator[tuple[RedisStateStore, ArchiveReader]]:
    """Open the archive, and make none. What changes it is refused if Redis knows another one."""
    async with RedisStateStore.from_url(url) as store, ArchiveReader(store) as reader:
        if changes:
            await KnownArchive(store, reader.archive).check()
        yield store, reader


@archive.command()
def status(url: Url = None, as_json: AsJson = False) -> None:
    """Count what is archived, and what waits for it.

    Bytes are those of all namespaces. Status 1 if data files are missing, which it names, or if
    Redis knows another archive.
    """

    async def look() -> dict[str, Any]:
        async with _reading(url) as (store, reader):
            known, own = await _identities(store, reader)
            held = await _held(reader, nothing=known is not None and own is None)
            backlog = await ArchiveList(store).backlog()
            records = await RecordList(store.base).backlog()
            kinds = {kind.what: count for kind, count in held.records.items()}
            found = asdict(held) | kinds
            del found["records"]
            return found | {
                "id": own,
                "known_id": known,
                "waiting": backlog.tasks,
                "waiting_s": backlog.oldest_s,
                "sessions_behind": backlog.sessions,
                "sessions_behind_s": backlog.behind_s,
                "waiting_records": records.records,
                "waiting_records_s": records.oldest_s,
            }

    found = run(look())
    if as_json:
        print_json(found)
    else:
        rows = [(name, found[name]) for name in found if name != "missing"]
        print_table(("what", "is"), rows, none="")
        for name in found["missing"]:
            print_line(harmless(f"{name} is missing"))
        if _is_other(found):
            print_line("Redis knows another archive: archivers refuse this one")
    if found["missing"] or _is_other(found):
        raise typer.Exit(ExitCode.FAILED)


async def _identities(
    store: RedisStateStore, reader: ArchiveReader
) -> tuple[str | None, str | None]:
    """Return the ids that Redis knows and that the archive has; None for what is not to be read."""
    try:
        return await KnownArchive(store, reader.archive).look()
    except ArchiveUnavailable:
        # Its user may read what an earlier version has made, and nothing else.
        return None, None


async def _held(reader: ArchiveReader, *, nothing: bool) -> ArchiveStatus:
    """Return what the archive has. If ``nothing`` is at its place, that is no error."""
    try:
        return await reader.archive.status()
    except ArchiveUnavailable:
        if not nothing:
            raise
        return ArchiveStatus(0, 0, 0, 0, None, None)


def _is_other(found: dict[str, Any]) -> bool:
    return found["known_id"] is not None and found["known_id"] != found["id"]


@archive.command(name="drop-missing")
def drop_missing(url: Url = None, as_json: AsJson = False) -> None:
    """Count data files that are missing no more.

    Restore them if you can: a file that comes back later is deleted. `archive run --again` copies
    what Redis still has of them, of updates what follows the last one. Status 0 if there is none.
    """

    async def work() -> list[str]:
        async with _reading(url, changes=True) as (_, reader):
            drop: Any = getattr(reader.archive, "drop_missing", None)
            if drop is None:
                raise ConfigError("archive_url: an archive of Parquet files alone has data files")
            return list(await drop())

    found = run(work())
    if as_json:
        print_json(found)
    else:
        print_table(("file",), [(name,) for name in found], none="no file is missing")


@archive.command()
def tasks(
    session: Session = None,
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
        async with _reading(url) as (_, reader):
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
        async with _reading(url) as (_, reader):
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
        async with _reading(url) as (_, reader):
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
        async with _reading(url) as (_, reader):
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
        async with _reading(url) as (_, reader):
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


@archive.command(name="run")
def archive_now(
    backfill: Annotated[
        bool, typer.Option("--backfill", help="Also what was there before it was archived.")
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Also what is marked: for an archive from a backup."),
    ] = False,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="As --again, and for another archive than Redis knows."),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue until SIGTERM, through all trouble.")
    ] = False,
    share: Annotated[
        float, typer.Option(min=0.01, max=1, help="The part of its time that --follow archives.")
    ] = 0.5,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="How much --follow stands back for other processes.")
    ] = 10,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Where --follow serves Prometheus metrics."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address of that port.")] = "127.0.0.1",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Archive what waits, and return once nothing of it is due.

    Workers do so by themselves. With an option it also waits until the records that it finds
    are due: `call_timeout_s` and five seconds. It names classes of which it finds none as
    ``left``. Status 5 if the archive is away, or another one than Redis knows. --accept has Redis
    know it from then on. First give all processes its URL: what Redis does not have any more is
    in the earlier archive alone.

    Other archivers that worked meanwhile may have archived into the earlier one. It says so if it
    has seen any. With --follow it copies all again after a minute and a half.

    With --follow it is the archiver of a pool whose workers have REDIS_STATE_ARCHIVE_SHARE=0. There
    may be several. It prints nothing more and keeps the retention too. It rests for half of its
    time, unless what waits is late. Metrics need the extra ``prometheus``. Their port is not served
    if it is in use: a line of the log says so.
    """
    if follow:
        if backfill or again:
            raise typer.BadParameter("--follow takes neither --backfill nor --again")
        if accept:
            _accept_and_stay(url, as_json=as_json)
        metrics = None if metrics_port is None else (metrics_host, metrics_port)
        run(follow_until_ended(url, share=share, nice=nice, metrics=metrics))
        return
    if metrics_port is not None:
        raise typer.BadParameter("--metrics-port needs --follow")
    found = run(archive_due(url, backfill=backfill, again=again, accept=accept))
    _print_archived(found, as_json=as_json)
    if found.get("archivers") and not as_json:
        print_line("If one of them had the earlier archive, run this in a minute and a half:")
        print_line("redis-state archive run --again")


def _accept_and_stay(url: str | None, *, as_json: bool) -> None:
    """Accept another archive; then copy all again: others may have archived meanwhile.

    Those that began and ended in between are not seen.
    """
    found = run(archive_due(url, backfill=False, again=True, accept=True))
    _print_archived(found, as_json=as_json)
    if not as_json:
        print_line("One may have had the earlier archive: all is copied again in 90 s")
    try:
        _print_archived(run(archive_once_more(url)), as_json=as_json)
    except typer.Exit as ended:
        if ended.exit_code == ExitCode.INTERRUPTED:
            raise
        complain("not all was copied again: run `redis-state archive run --again`")


def _print_archived(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was archived and, of an archive that was accepted, how many others worked."""
    if as_json:
        print_json(found)
        return
    counts = {name: n for name, n in found.items() if name not in ("left", "archivers")}
    print_line(harmless(", ".join(f"{name} {count}" for name, count in counts.items())))
    for name in found["left"]:
        print_line(harmless(f"{name} of before are not looked for"))
    if "archivers" in found:
        others = found["archivers"] or "no"
        print_line(f"Redis knows this archive now; {others} other archivers were seen meanwhile")


@archive.command()
def release(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: only count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Let go. Without it: a dry run.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also while something archives, or the URL is set.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Release what is held for an archive that is no more: it expires when it would have.

    For a deployment whose REDIS_STATE_ARCHIVE_URL was taken away. It needs no archive. What has
    outlived its own lifetime expires after a minute, and is in no archive. Without --yes it is a
    dry run. It may be repeated, also after a crash. The server's user needs the role admin of
    `redis-state acl`. Status 1 if something could not be read, 4 if something archives.
    """
    shown: dict[str, int] = {}

    def show(what: str, number: int) -> None:
        # One line for each ten thousand: a person may wait.
        if number // 10_000 > shown.get(what, 0) and not as_json:
            shown[what] = number // 10_000
            print(f"{what}: {number}", file=sys.stderr)

    counting = dry_run or not yes

    async def work() -> ReleaseReport:
        async with RedisStateStore.from_url(url) as store:
            return await release_held(store, dry_run=counting, force=force, progress=show)

    report = run(work())
    if as_json:
        print_json(report.document())
    else:
        _print_release(report)
        if counting and not dry_run and not report.is_empty:
            print_line("nothing was changed: repeat with --yes")
    if report.failed:
        raise typer.Exit(ExitCode.FAILED)


def _print_release(report: ReleaseReport) -> None:
    rows = [(what, n, report.overdue[what]) for what, n in sorted(report.released.items())]
    word = "held" if report.dry_run else "released"
    print_table(("what", word, "of them expire in a minute"), rows, none="nothing is held")
    if report.unlisted:
        does = (
            "are on the archive's lists" if report.dry_run else "were taken off the archive's lists"
        )
        print_line(f"{report.unlisted} entries {does}")
    if report.failed:
        print_line(f"{report.failed} could not be read")
    for reason in report.in_use:
        print_line(harmless(f"in use: {reason}"))


@archive.command()
def retain(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: only count.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Remove what has expired, by REDIS_STATE_ARCHIVE_RETENTION: of each class, what is older.

    The same of audit events in PostgreSQL, by REDIS_STATE_DURABLE_EVENTS_RETENTION. Workers do so
    by themselves, once an hour. It removes at once: --dry-run counts first. Status 1 if a part was
    in use and is left.
    """

    async def work() -> RetentionReport:
        report = RetentionReport()
        async with RedisStateStore.from_url(url) as store:
            keeps_events = store.settings.durable_events_retention is not None
            if not store.settings.archive_retention and not keeps_events:
                raise ConfigError("archive_retention is not set: all is kept for ever")
            if store.settings.archive_retention:
                async with ArchiveReader(store) as reader:
                    retainer = Retainer(store, reader.archive)
                    report = await (retainer.count() if dry_run else retainer.remove())
            if keeps_events:
                report.add("durable_events", await store.events.retain(dry_run=dry_run))
        return report

    found = run(work())
    if as_json:
        print_json(asdict(found) | {"dry_run": dry_run})
    else:
        rows = [(what, rows, found.partitions[what]) for what, rows in found.rows.items()]
        print_table(("class", "rows", "whole months"), rows, none="")
        for name, reason in found.left.items():
            print_line(harmless(f"{name} {reason}"))
    if found.left:
        raise typer.Exit(ExitCode.FAILED)


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
