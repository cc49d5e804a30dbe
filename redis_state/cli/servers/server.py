"""The commands about the server itself."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, or_exit, run
from redis_state.cli.output import harmless
from redis_state.doctor import SAMPLE, ExamineProgress, Verdict, examine
from redis_state.errors import InvalidField
from redis_state.rights import Role, UserRule, user_rule
from redis_state.settings import make_settings
from redis_state.transport.connections.address import Address


@app.command()
def acl(
    namespace: Annotated[
        str | None, typer.Option(help="The namespace. Default: REDIS_STATE_NAMESPACE, else rs.")
    ] = None,
    role: Annotated[
        Role,
        typer.Option(
            help="app: stores and clients. worker: handlers. watcher: reads and watches. admin: "
            "also what reads all keys, such as to erase, to migrate, to delete the namespace."
        ),
    ] = Role.APP,
    user: Annotated[
        str | None, typer.Option(help="The user's name. Default: <namespace>-<role>.")
    ] = None,
    cluster: Annotated[
        bool | None, typer.Option(help="For a Redis Cluster. Default: as the address says.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the user that a namespace's processes need, for ACL SETUSER. Contacts no server.

    Run it with the variables of the processes: REDIS_STATE_URL and REDIS_STATE_GUARANTEE decide
    some commands. Send the line to every server, and to every node of a cluster. redis-cli takes it
    at its prompt and from a pipe, a shell only with quotes. Then give the user a password.

    With such users, tenants of one server cannot reach each other's data. Without them a namespace
    separates names only. Redis 7.0 or later.

    Try: `redis-state acl --role worker | redis-cli`
    """

    def make() -> UserRule:
        options = {} if namespace is None else {"namespace": namespace}
        settings = make_settings(url, **options)
        on_cluster = Address.parse(settings.url.get_secret_value()).is_cluster
        return user_rule(
            settings,
            role,
            user=user,
            cluster=on_cluster if cluster is None else cluster,
        )

    rule = or_exit(make)
    if as_json:
        words = {"user": rule.user, "commands": rule.commands}
        print(json.dumps(words | {"keys": rule.keys, "channels": rule.channels}))
    else:
        print(rule)


_SHOWN_EACH = 100_000
_COLOURS = {Verdict.SOUND: "green", Verdict.FINDING: "red", Verdict.UNKNOWN: "yellow"}


@app.command()
def doctor(
    sample: Annotated[
        str,
        typer.Option(
            metavar="N|all",
            help="How many keys of each server are examined for a lifetime.",
        ),
    ] = str(SAMPLE),
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Ask each server whether it is fit to keep state, and say what to do. Writes nothing.

    Of each server it asks for version, role, memory (eviction, how full), clients (connections) and
    replies (client-output-buffer-limit). It asks for persistence (appendonly, appendfsync, refused
    writes, rights of the user `default`). It asks for replicas (in sync, min-replicas-to-write),
    guarantee (what REDIS_STATE_GUARANTEE needs) and cluster (slots). It asks for certificate (its
    last day), clock, lifetimes (keys that never expire, in a sample) and rights.

    Of the pool it asks for queue (tasks that wait, workers), also on a server of its own. It looks
    for orphans among jobs and tasks, in samples. It asks for versions (of handlers that nobody
    serves), sweeping (how late tasks are inspected) and schedules (that nobody looks at). It asks
    for durable events (PostgreSQL), for the archive (which one, how late), and for variables of
    this environment with misspelt names.

    Answers are *sound*, *finding*, or *unknown* for what the user may not ask. Status 0 if there is
    no finding, 1 for findings, 5 if a server cannot be reached.
    """
    settings = or_exit(lambda: make_settings(url))
    most = or_exit(lambda: _sample(sample))
    found = run(examine(settings, sample=most, progress=None if as_json else _show_keys()))
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        console = Console()
        for server in dict.fromkeys(each.server for each in found):
            console.print(server, style="bold", markup=False, highlight=False)
            table = Table(box=box.SIMPLE, show_header=False, pad_edge=False, show_edge=False)
            for each in (each for each in found if each.server == server):
                lines = [each.says]
                lines += [f"  It means: {each.means}."] if each.means else []
                lines += [f"  Do: {each.do}."] if each.do else []
                state = f"[{_COLOURS[each.state]}]{each.state.value}[/]"
                table.add_row(state, each.question, escape("\n".join(map(harmless, lines))))
            console.print(table)
    if any(each.state is Verdict.FINDING for each in found):
        raise typer.Exit(ExitCode.FAILED)


def _sample(written: str) -> int | None:
    """Read how many keys are wanted; None for all. Errors: InvalidField."""
    if written == "all":
        return None
    if not written.isascii() or not written.isdecimal() or int(written) < 1:
        raise InvalidField("sample", "needs a number from 1, or all")
    return int(written)


def _show_keys() -> ExamineProgress:
    """Print a line for each 100,000 keys: a person may wait."""
    shown: dict[str, int] = {}

    def show(server: str, examined: int, total: int | None) -> None:
        if examined // _SHOWN_EACH > shown.get(server, 0):
            shown[server] = examined // _SHOWN_EACH
            among = "" if total is None else f" of {total:,}"
            print(f"{server}: {examined:,}{among} keys examined", file=sys.stderr, flush=True)

    return show
