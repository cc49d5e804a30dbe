"""The command ``demo``: a small pool of agents at work, from nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from redis_state.cli.commands import AsJson, app
from redis_state.cli.exit_codes import ExitCode, or_exit

if TYPE_CHECKING:
    from redis_state.demo.run import Outcome


@app.command()
def demo(
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 3,
    pace: Annotated[
        float, typer.Option(min=0, help="Seconds that each step takes, to be able to follow.")
    ] = 0.1,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill a worker (-9) in the middle of an order.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option("--url", help="Use this server. Default: start one for the demo alone."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run four agents in three worker processes: they pause, are steered, cancelled and resumed.

    Each agent prepares an order: it prices four items, one step each, and pauses for an approval.
    It ships the order when it is approved.

    The first agent is steered while it runs, the second is cancelled. The worker that paused the
    first order is retired before the approval, so another process resumes it. With --chaos one
    more worker is killed (-9) in the middle of an order, and another worker takes over.

    A limit lets three orders run at a time, in all workers together. A schedule fires each second
    meanwhile. In the end the orders are found by an attribute.

    Status 0 only if every agent ended as it should and every update was seen exactly once. The
    limit must have held, and each occurrence must have had one task.

    Try: `redis-state demo --chaos`, `redis-state demo --workers 5 --pace 0.5`. Larger examples are
    in the folder `examples` of the project.
    """
    from redis_state.demo.run import run_demo  # noqa: PLC0415 - needs the extra

    console = Console(stderr=as_json)

    def say(text: str, style: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True, style=style)

    def show(text: str) -> None:
        say(f"> {text}")

    run = partial(run_demo, url=url, workers=workers, chaos=chaos, pace_s=pace, say=show)
    outcome = or_exit(lambda: asyncio.run(run()))
    if as_json:
        print(json.dumps(outcome.to_dict()))
    else:
        say("")
        console.print(_table(outcome))
        say("")
        if outcome.ok:
            text = f"{outcome.updates_seen} updates written, each seen once and in order"
            say(f"{text} ({outcome.seconds:.1f} s).", "green")
            for line in outcome.flow.lines():
                say(line)
        else:
            say("Not as it should be:", "bold red")
            for problem in outcome.problems:
                say(f"- {problem}")
    if not outcome.ok:
        raise typer.Exit(ExitCode.FAILED)


def _table(outcome: Outcome) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    columns = ["agent", "outcome", "updates", "paused by", "resumed by", "killed", "next worker"]
    if not outcome.killed:
        del columns[-2:]
    for column in columns:
        table.add_column(column, no_wrap=True)
    for agent in outcome.agents:
        places = [agent.paused_by, agent.resumed_by, agent.killed, agent.taken_over_by]
        cells = [agent.name, agent.status, str(agent.updates), *map(_process, places)]
        table.add_row(*cells[: len(columns)])
    return table


def _process(worker: str) -> str:
    """Return a worker's process; the host only if it is another one."""
    host, _, number = worker.rpartition(":")
    return f"pid {number}" if number and host == socket.gethostname() else worker
