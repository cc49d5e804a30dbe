"""The commands.

The exit status says how it went, see `redis_state.cli.exit_codes`.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from redis_state import RedisStateStore, __version__
from redis_state.cli.exit_codes import STATUSES, ExitCode, complain, or_exit, run
from redis_state.errors import CallerError

if TYPE_CHECKING:
    from redis_state.demo.driver import Options
    from redis_state.demo.review_run import Outcome
    from redis_state.worker import AgentWorker

app: typer.Typer = typer.Typer(
    name="redis-state",
    help="State for running agents, on plain Redis or Valkey.\n\n"
    "Begin with `redis-state demo`: it needs nothing but itself.\n\n"
    "The server is REDIS_STATE_URL (redis://, rediss://, unix://, embedded:///directory), else "
    "redis://localhost:6379/0, unless --url names another. Every setting of the store is "
    "REDIS_STATE_<NAME> in the environment.\n\n"
    "With a pool at work: `tasks` and `tree` show what there is, `show` and `tail` one task, "
    "`approve`, `reject`, `steer` and `cancel` have a say in it. Each takes --json.\n\n"
    f"Exit status: {STATUSES}.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Url = Annotated[str | None, typer.Option("--url", help="Server address; else REDIS_STATE_URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def demo(
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
        typer.Option("--url", help="Use this server. Default: start one for the demo alone."),
    ] = None,
    penguiflow: Annotated[
        bool,
        typer.Option(
            "--penguiflow",
            help="Run PenguiFlow's planners instead: paused in one process, resumed in another. "
            "Status 2 if penguiflow is not installed.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Review Markdown documents with a pool of agents that pause, are steered and are resumed.

    Each document is a task: it is parsed, outlined, its links and repeated paragraphs are checked,
    a table of contents is proposed; then the task pauses for approval. When approved it writes a
    report and a reviewed copy, when rejected only the report.

    Three worker processes do the work. One of them is retired while a task it paused still waits,
    so that another resumes it. The first document's task is told something, the second is
    redirected, the third is cancelled; no document is changed. With --chaos a worker is killed in
    the middle of its reviews, and the table shows who took over.

    Status 0 only if every task ended as it should and every update was seen exactly once.

    With --penguiflow, a real ReactPlanner with a scripted model outlines each of up to four
    documents. All pause; the workers that paused them are retired; each is approved twice. Status 0
    only if each went on in another process with its trajectory intact, and published once.

    Try: `redis-state demo --ask`, `redis-state demo docs --workers 5 --pace 0.5`.
    """
    if penguiflow:
        _need_penguiflow(ask=ask)
    from redis_state.demo.documents import choose_documents  # noqa: PLC0415 - needs the extras
    from redis_state.demo.driver import Options, run_demo  # noqa: PLC0415 - as above
    from redis_state.demo.view import PlainView, view_for  # noqa: PLC0415 - as above

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
    if penguiflow:
        _run_plans(options, console, as_json=as_json)
        return
    view = PlainView(console) if as_json else view_for(console)

    def review() -> Outcome:
        with view:
            return asyncio.run(run_demo(options, view))

    outcome = or_exit(review)
    _report(outcome, console, as_json=as_json)
    if not outcome.ok:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER",
            help="Where the AgentWorker is, for example workers.settings:worker.",
        ),
    ],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            help="Take tasks of this queue; of several, the one named first is preferred."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log each task.")] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option(help="End when standard input does, as if told by SIGTERM.")
    ] = False,
    uvloop: Annotated[
        bool, typer.Option("--uvloop", help="Use uvloop's event loop; needs the extra of its name.")
    ] = False,
) -> None:
    """Run a worker process until SIGTERM, through restarts of the server.

    On SIGTERM it takes no more tasks, lets the running ones finish for a while, hands over the
    rest, and ends. Status 5 if the server never lets it in, for a wrong password for example; it
    waits for a server that is only away. `arq workers.settings.WorkerSettings` runs the same tasks
    under arq's own command, which exits when the server restarts.
    """
    from redis_state.worker import AgentWorker  # noqa: PLC0415 - needs the extra

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # What it serves, and where, is said at the start.
    logging.getLogger("redis_state.worker.worker").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, _end_at_once)
    found = or_exit(lambda: _load_worker(target, AgentWorker))
    if stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    chosen = or_exit(lambda: found.with_queues(*queue)) if queue else found
    or_exit(partial(chosen.run, uvloop=uvloop))


@app.command()
def health(url: Url = None, as_json: AsJson = False) -> None:
    """Ask the server how it is.

    Status 0 if all is well, 1 if its settings endanger what is stored, 5 if it cannot be reached.
    """

    async def ask_server() -> dict[str, Any]:
        async with RedisStateStore.from_url(url) as store:
            return asdict(await store.health())

    found = run(ask_server())
    if as_json:
        print(json.dumps(found))
    else:
        details: dict[str, str] = found.pop("details")
        found["problems"] = "\n".join(found["problems"]) or None
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False, show_edge=False)
        for name, value in (found | details).items():
            if value is not None:
                table.add_row(name, str(value))
        Console().print(table)
    if not found["ok"]:
        raise typer.Exit(ExitCode.UNAVAILABLE if found["problem"] else ExitCode.FAILED)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _need_penguiflow(*, ask: bool) -> None:
    if importlib.util.find_spec("penguiflow") is None:
        complain("--penguiflow needs PenguiFlow, which is not installed: pip install penguiflow")
        raise typer.Exit(ExitCode.USAGE)
    if ask:
        complain("--ask and --penguiflow do not go together")
        raise typer.Exit(ExitCode.USAGE)


def _run_plans(options: Options, console: Console, *, as_json: bool) -> None:
    from redis_state.demo.penguin_run import plans_table, run_plans  # noqa: PLC0415 - needs it

    def tell(text: str, style: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True, style=style)

    outcome = or_exit(lambda: asyncio.run(run_plans(options, lambda text: tell(f"> {text}"))))
    if as_json:
        print(json.dumps(outcome.to_dict()))
    else:
        tell("")
        console.print(plans_table(outcome))
        tell("")
        if outcome.ok:
            text = "Every planner went on in another process, its trajectory intact"
            tell(f"{text} ({outcome.seconds:.1f} s).", "green")
        else:
            tell("Not as it should be:", "bold red")
            for problem in outcome.problems:
                tell(f"- {problem}")
    if not outcome.ok:
        raise typer.Exit(ExitCode.FAILED)


def _report(outcome: Outcome, console: Console, *, as_json: bool) -> None:
    from redis_state.demo.view import outcome_table  # noqa: PLC0415 - needs the extras

    if as_json:
        print(json.dumps(outcome.to_dict()))
        return

    def tell(text: str, style: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True, style=style)

    tell("")
    console.print(outcome_table(outcome, width=console.width))
    tell("")
    if outcome.ok:
        tell(f"{outcome.updates_seen} updates written, each seen once and in order.", "green")
        resumed = sum(bool(review.resumed_by) for review in outcome.reviews)
        tell(f"{len(outcome.moved)} of {resumed} paused in one process and went on in another.")
        if outcome.killed:
            tell(f"{len(outcome.taken_over)} taken over from the worker that was killed.")
    else:
        tell("Not as it should be:", "bold red")
        for problem in outcome.problems:
            tell(f"- {problem}")
    tell(f"Reports and reviewed copies are in {outcome.output} ({outcome.seconds:.1f} s).")


def _load_worker(target: str, kind: type[AgentWorker]) -> AgentWorker:
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise CallerError(f"{target!r} is not of the form MODULE:WORKER")
    sys.path.append(str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise CallerError(f"{target!r} cannot be loaded: {error}") from error
    if not isinstance(found, kind):
        raise CallerError(f"{target!r} is {type(found).__name__}, not an AgentWorker")
    return found


def _end_at_once(*_: object) -> None:
    """End a worker that does not run yet: there is nothing to hand over.

    Not by an exception: it would break off whatever is just being made, such as the event loop.
    """
    for stream in (sys.stdout, sys.stderr):
        # It may be what was interrupted.
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def _stop_with_stdin() -> None:
    # Not through sys.stdin: its lock, held at exit by a thread that waits, is a fatal error.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
