"""``redis-state forget``: erase a session or a user."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from redis_state import RedisStateStore
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, run
from redis_state.cli.output import harmless, print_json, print_line, print_table
from redis_state.erasure import ErasureReport
from redis_state.errors import CallerError


class Running(StrEnum):
    """What becomes of tasks that run."""

    CANCEL = "cancel"
    REFUSE = "refuse"
    FENCE = "fence"


@app.command()
def forget(
    session: Annotated[str | None, typer.Option("--session", help="Erase this session.")] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Erase this user's sessions, and the rest.")
    ] = None,
    attribute: Annotated[
        str, typer.Option(help="The attribute of tasks that names their user.")
    ] = "user",
    shared: Annotated[
        bool, typer.Option("--shared", help="Also sessions that have tasks of other users.")
    ] = False,
    running: Annotated[
        Running, typer.Option(help="Cancel running tasks, refuse to erase, or end their leases.")
    ] = Running.CANCEL,
    leave_unset: Annotated[
        bool,
        typer.Option(
            "--leave-unset", help="Leave an archive, or durable events, that are not set here."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: only count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Erase. Without it: a dry run.")] = False,
    actor: Annotated[str | None, typer.Option(help="Who erases, for the log.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Erase a session or a user: in Redis, the archive and the store of claims; print what it was.

    Without --yes it is a dry run. It may be repeated, also after a crash. The server's user needs
    the role admin of `redis-state acl`. Status 1 if something is left that could not be removed, 4
    if tasks run and --running is refuse. Also 4 if Redis knows of an archive, or of durable events,
    that are not set here.

    Try: `redis-state forget --session S --dry-run`.
    """
    counting = dry_run or not yes
    shown: dict[str, int] = {}

    def show(what: str, number: int) -> None:
        # One line for each thousand: a person may wait.
        if number // 1000 > shown.get(what, -1) and not as_json:
            shown[what] = number // 1000
            print(f"{what}: {number}", file=sys.stderr)

    async def work() -> ErasureReport:
        if (session is None) == (user is None):
            raise CallerError("give either --session or --user")
        from redis_state.worker import TaskClient  # noqa: PLC0415 - needs the extra

        async with RedisStateStore.from_url(url) as store, TaskClient(store) as client:
            if session is not None:
                return await client.forget(
                    session,
                    dry_run=counting,
                    running=running.value,
                    actor=actor,
                    progress=show,
                    leave_unset=leave_unset,
                )
            return await client.forget_user(
                user or "",
                attribute=attribute,
                shared=shared,
                dry_run=counting,
                running=running.value,
                actor=actor,
                progress=show,
                leave_unset=leave_unset,
            )

    report = run(work())
    if as_json:
        print_json(report.document())
    else:
        _print(report, counting=counting and not dry_run)
    if not report.is_complete:
        raise typer.Exit(ExitCode.FAILED)


def _print(report: ErasureReport, *, counting: bool) -> None:
    where = [("redis", report.redis), ("archive", report.archive)]
    rows = [(name, what, str(n)) for name, counts in where for what, n in counts.items() if n]
    if report.claims:
        rows.append(("claims", "objects", str(report.claims)))
    if report.durable_events:
        rows.append(("postgresql", "durable events", str(report.durable_events)))
    word = "would be removed" if report.dry_run else "removed"
    print_table(("where", "what", word), rows, none="there was nothing")
    for what, reason in report.kept.items():
        print_line(harmless(f"kept    {what}: {reason}"))
    for what, reason in report.failed.items():
        print_line(harmless(f"failed  {what}: {reason}"))
    if counting:
        print_line("nothing was removed: repeat with --yes")
