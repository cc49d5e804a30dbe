"""How long things are kept: what is held for an archive, and what an archive holds."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from redis_state import RedisStateStore
from redis_state.archive import ArchiveReader
from redis_state.archive.retaining import Retainer
from redis_state.archive.retention import RetentionReport
from redis_state.cli.archive.group import archive
from redis_state.cli.commands import AsJson, Url
from redis_state.cli.exit_codes import ExitCode, run
from redis_state.cli.output import harmless, print_json, print_line, print_table
from redis_state.erasure import ReleaseReport, release_held
from redis_state.errors import ConfigError


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
