"""The command that archives: what is due, all again, or for as long as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from redis_state.cli.archive.archiving import archive_due, archive_once_more, follow_until_ended
from redis_state.cli.archive.group import archive
from redis_state.cli.commands import AsJson, Url
from redis_state.cli.exit_codes import ExitCode, complain, run
from redis_state.cli.output import harmless, print_json, print_line


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
