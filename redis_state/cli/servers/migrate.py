"""The commands that move a namespace to another server."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, or_exit, run
from redis_state.cli.output import harmless, print_line
from redis_state.doctor import Verdict
from redis_state.migration import Migration, PassProgress
from redis_state.migration.reports import Named
from redis_state.settings import Settings, make_settings

T = TypeVar("T")

migrate: typer.Typer = typer.Typer(
    name="migrate",
    help="Move a namespace to another server, of any kind, in steps that can be repeated.\n\n"
    "1. `plan` counts what would be moved, and asks both servers whether they are fit.\n\n"
    "2. `copy`, while the source is in use. Repeat it until it copies little.\n\n"
    "3. Stop all processes that use the namespace. `copy` again, then `check`.\n\n"
    "4. `finish`, and start the processes with the new address.\n\n"
    "The queue of the workers is not moved: tasks that wait are queued again by a worker of the "
    "target. Until the source is deleted, the way back is its address.",
    no_args_is_help=True,
)
app.add_typer(migrate)

To = Annotated[
    str,
    typer.Option(
        "--to",
        envvar="REDIS_STATE_MIGRATE_TO",
        help="The target's address. A password is better in the environment.",
    ),
]
ToPasswordFile = Annotated[
    Path | None, typer.Option(help="The target's password. The source has its own settings.")
]
Namespace = Annotated[
    str | None, typer.Option(help="The namespace. Default: REDIS_STATE_NAMESPACE, else rs.")
]
_SHOWN_EVERY_S = 1.0
# Of the line that shows how far a pass is.
_CLEAR = "\r\x1b[K"


@migrate.command()
def plan(
    to: To,
    url: Url = None,
    namespace: Namespace = None,
    to_password_file: ToPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Count what would be moved, and ask both servers whether they are fit. Writes no state.

    Status 0 if nothing stands in the way, 1 for findings, 5 if a server cannot be reached.
    """
    found = _run(url, to, namespace, to_password_file, Migration.plan)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print_line(f"{found.keys:,} keys from {found.source} to {found.target}")
        for kind, count in found.kinds.items():
            print_line(f"  {count:>9,}  {harmless(kind)}")
        if found.target_keys:
            print_line(f"The target has {found.target_keys:,} keys of this namespace.")
        for each in found.findings:
            print_line(f"{each.state.value:>8}  {each.question}: {harmless(each.says)}")
            if each.state is Verdict.FINDING:
                print_line(f"          {each.means}; {each.do}")
    if any(each.state is Verdict.FINDING for each in found.findings):
        raise typer.Exit(ExitCode.FAILED)


@migrate.command()
def copy(
    to: To,
    url: Url = None,
    namespace: Namespace = None,
    to_password_file: ToPasswordFile = None,
    overwrite: Annotated[
        bool,
        typer.Option(help="Replace or delete what others have written at the target."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy what differs, and drop what was copied and is gone from the source. Repeat it at will.

    Each key is replaced in one step, so an interruption leaves whole keys. What others have written
    at the target is left alone and named.

    Status 0 if all is copied, 1 if something was left alone, 5 if a server cannot be reached.
    """
    listen = _show(as_json)
    done = _run(
        url,
        to,
        namespace,
        to_password_file,
        lambda each: each.copy(overwrite=overwrite, listen=listen),
    )
    if as_json:
        print(json.dumps(asdict(done)))
    else:
        print_line(
            f"{done.copied:,} keys copied ({done.bytes:,} bytes), {done.same:,} were the same, "
            f"{done.dropped:,} are gone"
        )
        _print_named(done.conflicts, "were written at the target, and were left alone")
        _print_named(done.strange, "are of a type that the library does not write")
    if not done.complete:
        raise typer.Exit(ExitCode.FAILED)


@migrate.command()
def check(
    to: To,
    url: Url = None,
    namespace: Namespace = None,
    to_password_file: ToPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare every key of both servers, by content and lifetime. Writes nothing.

    Status 0 if they are equal, 1 if they are not, 5 if a server cannot be reached.
    """
    _compare(url, to, namespace, to_password_file, as_json=as_json, finish=False)


@migrate.command()
def finish(
    to: To,
    url: Url = None,
    namespace: Namespace = None,
    to_password_file: ToPasswordFile = None,
    delete_source: Annotated[
        bool, typer.Option(help="Delete the namespace at the source, if both are equal.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check, and if both are equal end the migration. Call it when nobody writes.

    A later `copy` leaves alone all that differs. If they are not equal, nothing is done. What only
    the target has does not stand against --delete-source: repeat it if it was cut off.

    Status 0 if it is finished, 1 if they are not equal, 5 if a server cannot be reached.
    """
    _compare(
        url, to, namespace, to_password_file, as_json=as_json, finish=True, delete=delete_source
    )


def _compare(
    url: str | None,
    to: str,
    namespace: str | None,
    password_file: Path | None,
    *,
    as_json: bool,
    finish: bool,
    delete: bool = False,
) -> None:
    listen = _show(as_json)
    found = _run(
        url,
        to,
        namespace,
        password_file,
        lambda each: (
            each.finish(delete_source=delete, listen=listen)
            if finish
            else each.check(listen=listen)
        ),
    )
    if as_json:
        print(json.dumps(asdict(found) | {"equal": found.equal}))
    else:
        print_line(f"{found.same:,} keys are equal")
        _print_named(found.missing, "are at the source only")
        _print_named(found.extra, "are at the target only")
        _print_named(found.different, "have another content")
        _print_named(found.lifetimes, "have another lifetime")
        if found.finished:
            gone = f" {found.deleted:,} keys of the source are deleted." if delete else ""
            print_line(f"The migration is finished.{gone}")
        elif finish:
            print_line("Nothing was done: stop what writes, and copy again.")
    if not (found.finished or found.equal):
        raise typer.Exit(ExitCode.FAILED)


def _run(
    url: str | None,
    to: str,
    namespace: str | None,
    password_file: Path | None,
    work: Callable[[Migration], Awaitable[T]],
) -> T:
    def both() -> tuple[Settings, Settings]:
        options = {} if namespace is None else {"namespace": namespace}
        source = make_settings(url, **options)
        own = {"password_file": password_file, "credentials": None, "queue_url": None}
        return source, make_settings(to, **options, **own)

    source, target = or_exit(both)

    async def move() -> T:
        async with Migration(source, target) as migration:
            return await work(migration)

    try:
        return run(move())
    finally:
        if sys.stderr.isatty():
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def _show(as_json: bool) -> Callable[[PassProgress], None] | None:  # noqa: FBT001 - passed on
    """Show how far a pass is, on a line of standard error that is written again."""
    if as_json or not sys.stderr.isatty():
        return None
    last = time.monotonic()

    def show(progress: PassProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= _SHOWN_EVERY_S:
            last = time.monotonic()
            print(
                f"\r{progress.keys:,} keys, {progress.bytes:,} bytes written",
                end="",
                file=sys.stderr,
                flush=True,
            )

    return show


def _print_named(found: Named, what: str) -> None:
    if found.count:
        more = f", and {found.count - len(found.first):,} more" * (found.count > len(found.first))
        print_line(f"{found.count:,} {what}: {', '.join(map(harmless, found.first))}{more}")
