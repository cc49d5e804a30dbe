"""The command ``python -m examples.pydantic_ai``."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from redis_state.cli.exit_codes import ExitCode, complain, or_exit


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
    """Run an agent of pydantic-ai for each ticket, in a pool of workers of which one is killed.

    The model is scripted. A worker is killed (-9) while the model of the first ticket writes. Each
    agent asks for two refunds at once, and each is decided by two people at the same time. Status 0
    only if each ticket ended as decided, and nothing was done twice but the request in flight.
    Status 2 if pydantic-ai is not installed.
    """
    if find_spec("pydantic_ai") is None:
        complain("this example needs pydantic-ai: pip install 'redis_state[pydantic-ai]'")
        raise typer.Exit(ExitCode.USAGE)
    from examples.pydantic_ai.driver import run_tickets  # noqa: PLC0415

    console = Console(stderr=as_json)

    def say(text: str) -> None:
        console.print(f"> {text}", markup=False, highlight=False, soft_wrap=True)

    outcome = or_exit(lambda: asyncio.run(run_tickets(many, workers, output.resolve(), url, say)))
    if as_json:
        print(json.dumps({"ok": not outcome.problems, **vars(outcome)}))
    for problem in outcome.problems:
        say(f"not as it should be: {problem}")
    if outcome.problems:
        raise typer.Exit(ExitCode.FAILED)
    say(f"nothing was done twice but the request in flight ({outcome.seconds:.1f} s)")


if __name__ == "__main__":
    typer.run(tickets)
