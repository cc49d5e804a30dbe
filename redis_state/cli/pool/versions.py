"""The commands about versions of handlers: who needs them, who has them, what waits for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.client import client_of
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import run
from redis_state.cli.output import print_json, print_table

if TYPE_CHECKING:
    from redis_state.worker import HandlerVersion, UnservedTasks


@app.command()
def versions(
    handler: Annotated[
        str | None, typer.Argument(metavar="HANDLER", help="Only this handler.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Count the unfinished tasks that need each version of a handler, and the workers with it.

    It reads each unfinished task. A version without tasks may be removed.
    """

    async def look() -> list[dict[str, Any]]:
        async with client_of(url) as client:
            counted = await client.versions(handler=handler)
            unserved = [
                one
                for one in await client.unserved(limit=0)
                if handler in (None, one.handler) and not one.workers
            ]
        return [_document(one, unserved) for one in counted]

    found = run(look())
    if as_json:
        print_json(found)
    else:
        columns = ("handler", "version", "unfinished", "unserved", "workers")
        rows = [
            (one["handler"], one["version"] or "-", one["tasks"], one["unserved"], _names(one))
            for one in found
        ]
        print_table(columns, rows, none="no unfinished tasks, and no versions")


def _document(one: HandlerVersion, unserved: list[UnservedTasks]) -> dict[str, Any]:
    waiting = sum(
        each.waiting
        for each in unserved
        if (each.handler, each.version) == (one.handler, one.version)
    )
    return asdict(one) | {"unserved": waiting}


def _names(one: dict[str, Any]) -> str:
    names = one["workers"]
    return ", ".join(names) or "none"
