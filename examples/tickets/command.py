"""The command of an example: its options, and what it prints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from redis_state.cli.exit_codes import ExitCode, complain, or_exit


def command(module: str, extra: str, target: str, about: str) -> Callable[..., None]:
    """Make the command of an example that needs a module of an extra; its text is ``about``."""

    def tickets(
        many: Annotated[int, typer.Option("--tickets", min=1, help="Tickets of customers.")] = 3,
        workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 2,
        output: Annotated[Path, typer.Option("--out", "-o", help="Folder for the logs.")] = Path(
            "demo-output"
        ),
        url: Annotated[
            str | None,
            typer.Option("--url", help="Use this server. Default: start one for this run alone."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    ) -> None:
        if find_spec(module) is None:
            complain(f"this example needs {extra}: pip install 'redis_state[{extra}]'")
            raise typer.Exit(ExitCode.USAGE)
        _run(target, many, workers, output, url, as_json=as_json)

    tickets.__doc__ = about
    return tickets


def _run(
    target: str, many: int, workers: int, output: Path, url: str | None, *, as_json: bool
) -> None:
    from examples.tickets.driver import run_tickets  # noqa: PLC0415 - needs the worker extra

    console = Console(stderr=as_json)

    def say(text: str) -> None:
        console.print(f"> {text}", markup=False, highlight=False, soft_wrap=True)

    outcome = or_exit(
        lambda: asyncio.run(run_tickets(target, many, workers, output.resolve(), url, say))
    )
    if as_json:
        print(json.dumps({"ok": not outcome.problems, **vars(outcome)}))
    for problem in outcome.problems:
        say(f"not as it should be: {problem}")
    if outcome.problems:
        raise typer.Exit(ExitCode.FAILED)
    say(f"nothing was done twice but the request in flight ({outcome.seconds:.1f} s)")
