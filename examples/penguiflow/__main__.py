"""The command ``python -m examples.penguiflow``."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from redis_state.cli.exit_codes import ExitCode, complain, or_exit
from redis_state.errors import ConfigError

_MOST = 4


def plan(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Documents to outline. Default: the Markdown files of this folder."),
    ] = None,
    output: Annotated[Path, typer.Option("--out", "-o", help="Folder for the log.")] = Path(
        "demo-output"
    ),
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 3,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Use this server. Default: start one for this run alone."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run PenguiFlow's planners: paused in one process, resumed in another.

    A real ReactPlanner with a scripted model outlines each of up to four documents. All pause; the
    workers that paused them are retired; each pause is approved twice. Status 0 only if each
    planner resumed in another process with its trajectory intact, and published once. Status 2 if
    penguiflow is not installed.
    """
    if find_spec("penguiflow") is None:
        complain("this example needs PenguiFlow, which is not installed: pip install penguiflow")
        raise typer.Exit(ExitCode.USAGE)
    from examples.penguiflow.driver import Options, plans_table, run_plans  # noqa: PLC0415

    console = Console(stderr=as_json)

    def say(text: str, style: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True, style=style)

    documents = or_exit(lambda: _documents(paths or []))
    options = Options(documents=documents, output=output.resolve(), workers=workers, url=url)
    outcome = or_exit(lambda: asyncio.run(run_plans(options, lambda text: say(f"> {text}"))))
    if as_json:
        print(json.dumps(outcome.to_dict()))
    else:
        say("")
        console.print(plans_table(outcome))
        say("")
        if outcome.ok:
            text = "Every planner resumed in another process, its trajectory intact"
            say(f"{text} ({outcome.seconds:.1f} s).", "green")
        else:
            say("Not as it should be:", "bold red")
            for problem in outcome.problems:
                say(f"- {problem}")
    if not outcome.ok:
        raise typer.Exit(ExitCode.FAILED)


def _documents(given: list[Path]) -> list[Path]:
    found = given or sorted(Path.cwd().glob("*.md"))
    if not found:
        raise ConfigError(f"no Markdown documents in {Path.cwd()}: name some")
    for path in found:
        if not path.is_file():
            raise ConfigError(f"no such document: {path}")
    return [path.resolve() for path in found[:_MOST]]


if __name__ == "__main__":
    typer.run(plan)
