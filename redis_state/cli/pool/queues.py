"""The commands about queues: what waits and runs, limits, pause and resume."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.client import client_of
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import run
from redis_state.cli.output import harmless, print_json, print_line, print_table
from redis_state.documents import queue_document, queue_key_document
from redis_state.errors import InvalidField

if TYPE_CHECKING:
    from redis_state.worker import QueueKeyInfo, UnservedTasks
    from redis_state.worker.queue.limits import QueueInfo, Rate

queues: typer.Typer = typer.Typer(
    name="queues",
    invoke_without_command=True,
    no_args_is_help=False,
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue. The default one is tasks.")]

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"(\d{1,9})/(\d{0,6})(ms|s|m|h|d)")


@queues.callback()
def show(
    context: typer.Context,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List queues; its commands pause, resume and limit them, for all workers at once.

    Without a command: what waits, since when, what runs, how many workers there are, and the
    limits. They are those that live workers serve, the default one, and all that have tasks. Also
    what waits for workers with a version of its handler, and who has it.
    """
    if context.invoked_subcommand is not None:
        return

    async def look() -> tuple[list[QueueInfo], list[UnservedTasks]]:
        async with client_of(url) as client:
            return list(await client.queues.list()), list(await client.unserved(limit=0))

    infos, unserved = run(look())
    _report(infos, unserved, as_json=as_json)


@queues.command()
def pause(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Begin no more tasks of a queue. What runs is not stopped."""

    async def do() -> list[QueueInfo]:
        async with client_of(url) as client:
            await client.queues.pause(name)
            return [await client.queues.get(name)]

    _report_changed(run(do()), as_json=as_json)


@queues.command()
def resume(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Begin tasks of a paused queue again."""

    async def do() -> list[QueueInfo]:
        async with client_of(url) as client:
            await client.queues.resume(name)
            return [await client.queues.get(name)]

    _report(run(do()), as_json=as_json)


@queues.command()
def limit(
    name: Name,
    running: Annotated[
        str | None,
        typer.Option(help="The most tasks that run; with --limit-key, of that key. none: any."),
    ] = None,
    per_key: Annotated[
        str | None, typer.Option(help="The most tasks of each key that run. none: any.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="How often tasks of one key start: 10/s, 100/5m. none: any."),
    ] = None,
    limit_key: Annotated[
        str | None, typer.Option(help="Set what holds for this key in place of the queue's limits.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Limit how many tasks of a queue, or of one key, run and start. What is not given stays.

    Try: `redis-state queues limit tasks --running 50 --per-key 2`,
    `redis-state queues limit tasks --limit-key acme --running 10`
    """

    async def do() -> list[QueueInfo]:
        limits = _given(running=running, per_key=per_key, rate=rate)
        async with client_of(url) as client:
            if limit_key is None:
                await client.queues.limit(name, **limits)
            elif "per_key" in limits:
                raise InvalidField("per_key", "is of the queue: with --limit-key, give --running")
            else:
                await client.queues.limit_key(name, limit_key, **limits)
            return [await client.queues.get(name)]

    _report_changed(run(do()), as_json=as_json)


@queues.command()
def keys(
    name: Name,
    limit: Annotated[int, typer.Option(min=1, help="The most keys that are listed.")] = 100,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List who waits in a queue and who runs, by key: those with the most waiting tasks first."""

    async def look() -> Sequence[QueueKeyInfo]:
        async with client_of(url) as client:
            return await client.queues.keys(name, limit=limit)

    found = run(look())
    if as_json:
        print_json([queue_key_document(each) for each in found])
        return
    rows = [
        (
            f"session {each.in_turn}, in turn" if each.limit_key is None else each.limit_key,
            each.waiting,
            each.running,
            f"{each.oldest_s:.0f} s",
        )
        for each in found
    ]
    print_table(("key", "waiting", "running", "oldest"), rows, none="No task has a key.")


app.add_typer(queues)


def _given(**options: str | None) -> dict[str, Any]:
    """Read the limits that were given; None for one that is taken away. Errors: InvalidField."""
    read = {"running": _count, "per_key": _count, "rate": read_rate}
    return {
        name: None if text == "none" else read[name](name, text)
        for name, text in options.items()
        if text is not None
    }


def _count(field: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidField(field, "needs a number, or none")
    return int(text)


def read_rate(field: str, text: str) -> Rate:
    """Read a rate as it is written on a command line. Errors: InvalidField."""
    from redis_state.worker.queue.limits import Rate  # noqa: PLC0415 - needs the extra

    match = _RATE.fullmatch(text)
    if match is None:
        raise InvalidField(field, "needs a number and a period, such as 10/s or 100/5m, or none")
    count, periods, unit = match.groups()
    return Rate(int(count), timedelta(seconds=int(periods or 1) * _SECONDS[unit]))


def _report_changed(infos: list[QueueInfo], *, as_json: bool) -> None:
    """Report a queue that was changed, and warn if nobody uses it: the name may be wrong."""
    _report(infos, as_json=as_json)
    for info in infos:
        if not (info.workers or info.waiting or info.later or info.running):
            unused = f"no worker serves the queue {info.name!r}, and no task is in it"
            print(harmless(f"redis-state: {unused}: is that its name?"), file=sys.stderr)


def _report(
    infos: list[QueueInfo], unserved: Sequence[UnservedTasks] = (), *, as_json: bool
) -> None:
    if as_json:
        print_json([_document(info, unserved) for info in infos])
        return
    columns = (
        "queue",
        "waiting",
        "later",
        "running",
        "oldest",
        "workers",
        "limit",
        "per key",
        "rate",
        "",
    )
    rows = [
        (
            info.name,
            info.waiting,
            info.later,
            info.running,
            f"{info.oldest_s:.0f} s",
            info.workers,
            _shown(info.limit),
            _shown(info.per_key),
            _shown(info.rate),
            "paused" if info.paused else "",
        )
        for info in infos
    ]
    print_table(columns, rows, none="No queue.")
    for info in infos:
        for key, its in info.keys.items():
            limits = f"running {_shown(its.running)}, rate {_shown(its.rate)}"
            print_line(harmless(f"{info.name}: key {key}: {limits}"))
    for one in unserved:
        version = "" if one.version is None else f"version {one.version} of "
        has = ", ".join(one.workers) or "no worker"
        waits = f"{one.waiting} waiting for {version}{one.handler}, which {has} has"
        print_line(harmless(f"{one.queue}: {waits}"))


def _shown(value: int | Rate | None) -> str:
    if value is None or isinstance(value, int):
        return "any" if value is None else str(value)
    return f"{value.limit}/{value.per.total_seconds():g}s"


def _document(info: QueueInfo, unserved: Sequence[UnservedTasks]) -> dict[str, Any]:
    document = queue_document(info)
    named = ("handler", "version", "waiting", "workers")
    document["unserved"] = [
        {name: getattr(one, name) for name in named} for one in unserved if one.queue == info.name
    ]
    return document
