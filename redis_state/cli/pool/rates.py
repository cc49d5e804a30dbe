"""The commands about rates: list, set and unset what `ctx.take` shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from redis_state.cli.client import client_of
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import run
from redis_state.cli.output import print_json, print_table
from redis_state.cli.pool.queues import read_rate
from redis_state.documents import rates_document

if TYPE_CHECKING:
    from redis_state.worker import Rate

rates: typer.Typer = typer.Typer(
    name="rates",
    invoke_without_command=True,
    no_args_is_help=False,
)


@rates.callback()
def show(context: typer.Context, url: Url = None, as_json: AsJson = False) -> None:
    """List the rates that were set, of those that handlers take from with `ctx.take`.

    `set` sets one. It holds at once, in every process, in place of what the code gives.
    """
    if context.invoked_subcommand is not None:
        return

    async def look() -> Mapping[str, Rate]:
        async with client_of(url) as client:
            return await client.rates.list()

    _report(run(look()), as_json=as_json)


@rates.command("set")
def set_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rate, as handlers name it.")],
    rate: Annotated[
        str, typer.Argument(metavar="RATE", help="10/s, 100/5m; none: what the handlers give.")
    ],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Set a rate, or take away what was set. A task that waits already waits to its end.

    Try: `redis-state rates set model 60/m`, `redis-state rates set model none`
    """

    async def do() -> Mapping[str, Rate]:
        wanted = None if rate == "none" else read_rate("rate", rate)
        async with client_of(url) as client:
            await client.rates.set(name, wanted)
            return await client.rates.list()

    _report(run(do()), as_json=as_json)


app.add_typer(rates)


def _report(found: Mapping[str, Rate], *, as_json: bool) -> None:
    if as_json:
        print_json(rates_document(found))
        return
    rows = ((name, f"{rate.limit}/{rate.per.total_seconds():g}s") for name, rate in found.items())
    print_table(("rate", "at most"), rows, none="no rate was set: handlers' own hold")
