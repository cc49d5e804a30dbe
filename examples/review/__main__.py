"""The command ``python -m examples.review``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.review.documents import choose_documents
from examples.review.driver import Options, run_demo
from examples.review.outcome import Outcome
from examples.review.view import PlainView, outcome_table, view_for
from redis_state.cli.exit_codes import ExitCode, or_exit


def review(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Markdown files or folders to review. Default: the README, docs and the longest "
            "Markdown files found in and beside this folder.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for reports and reviewed copies.")
    ] = Path("demo-output"),
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 3,
    ask: Annotated[
        bool, typer.Option("--ask", help="Decide every approval yourself: y or n, a line each.")
    ] = False,
    pace: Annotated[
        float, typer.Option(min=0, help="Seconds to linger on each stage, to be able to follow.")
    ] = 0.1,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill a worker (-9) in the middle of its reviews.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Use this server. Default: start one for this run alone."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Review Markdown documents with a pool of agents that pause, are steered and are resumed.

    Each document is a task: it is parsed, outlined, its links and repeated paragraphs are checked,
    a table of contents is proposed; then the task pauses for approval. When approved it writes a
    report and a reviewed copy, when rejected only the report.

    Three worker processes do the work. One of them is retired while a task it paused still waits,
    so that another resumes it. The first document's task is steered with a note, the second is
    redirected, the third is cancelled; no document is changed. With --chaos a worker is killed in
    the middle of its reviews, and the table shows who took over.

    A limit lets six reviews run at a time, in all workers together. A schedule fires each second
    meanwhile. In the end the reviews are found by an attribute.

    Status 0 only if every task ended as it should and every update was seen exactly once. The
    limit must have held, and each occurrence must have had one task.

    Try: `python -m examples.review --ask`, `python -m examples.review docs --workers 5 --pace 0.5`.
    """
    console = Console(stderr=as_json)
    here = Path.cwd()
    documents = or_exit(lambda: choose_documents(paths or [], here))
    options = Options(
        documents=documents,
        root=here,
        output=output.resolve(),
        workers=workers,
        ask=ask,
        pace_s=pace,
        url=url,
        chaos=chaos,
    )
    view = PlainView(console) if as_json else view_for(console)

    def run() -> Outcome:
        with view:
            return asyncio.run(run_demo(options, view))

    outcome = or_exit(run)
    _report(outcome, console, as_json=as_json)
    if not outcome.ok:
        raise typer.Exit(ExitCode.FAILED)


def _report(outcome: Outcome, console: Console, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome.to_dict()))
        return

    def say(text: str, style: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True, style=style)

    say("")
    console.print(outcome_table(outcome, width=console.width))
    say("")
    if outcome.ok:
        say(f"{outcome.updates_seen} updates written, each seen once and in order.", "green")
        resumed = sum(bool(review.resumed_by) for review in outcome.reviews)
        say(f"{len(outcome.moved)} of {resumed} paused in one process and resumed in another.")
        if outcome.killed:
            say(f"{len(outcome.taken_over)} taken over from the worker that was killed.")
        for line in outcome.flow.lines():
            say(line)
    else:
        say("Not as it should be:", "bold red")
        for problem in outcome.problems:
            say(f"- {problem}")
    say(f"Reports and reviewed copies are in {outcome.output} ({outcome.seconds:.1f} s).")


if __name__ == "__main__":
    typer.run(review)
