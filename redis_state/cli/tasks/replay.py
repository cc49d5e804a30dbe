"""The commands that hold changed code against stored journals: replay, history."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from redis_state.cli.client import SessionId, TaskId, client_of
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, complain, or_exit, run
from redis_state.cli.loading import load
from redis_state.cli.output import (
    file_of,
    harmless,
    print_json,
    print_line,
    print_table,
    save_to,
)
from redis_state.cli.tasks.listing import pages_of
from redis_state.errors import (
    CallerError,
    CorruptState,
    NotFound,
    PayloadStoreUnavailable,
    PayloadUnreadable,
)
from redis_state.models import TaskStatus

if TYPE_CHECKING:
    from redis_state.worker import TaskClient, TaskFilters
    from redis_state.worker.runs.replaying import ReplayReport
    from redis_state.worker.tasks.histories import TaskHistory

Names = Sequence[tuple[str, str]]
Read = Callable[[], Any]

_LIMIT = 1000
_UNFINISHED = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.PAUSED)


@dataclass(slots=True)
class _Looked:
    """What was replayed, what could not be read, and whether the limit left others out."""

    more: bool = False
    reports: list[ReplayReport] = field(default_factory=list["ReplayReport"])
    unread: list[dict[str, str]] = field(default_factory=list[dict[str, str]])


@app.command()
def replay(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLERS",
            help="The new code: an AgentWorker, or a mapping of names to handlers.",
        ),
    ],
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="Only tasks of this session.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Only this task of the session.")
    ] = None,
    handler: Annotated[str | None, typer.Option(help="Only tasks of this handler.")] = None,
    status: Annotated[
        list[TaskStatus] | None,
        typer.Option(case_sensitive=False, help="Of a session: in this status; may be repeated."),
    ] = None,
    history: Annotated[
        list[Path] | None,
        typer.Option(help="A file of `redis-state history`, instead of the server's tasks."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most tasks to replay, of those that are chosen. "
            f"Default: {_LIMIT}, and status 1 if there are more.",
        ),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="How many to replay at a time.")] = 8,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, help="The longest that one may take.")
    ] = 10.0,
    every: Annotated[bool, typer.Option("--every", help="List those that fit, too.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Replay stored journals under new code, without effects: find tasks that cannot continue.

    Steps return what is recorded. A replay ends where the journal does, or at the first call that
    does not fit. Nothing is written or published. What handlers do outside of steps happens in this
    process. Status 1 if a task could not continue or could not be read, or if there are more than
    the default limit; 3 if there is no such task.
    """
    handlers = or_exit(lambda: load_handlers(target))
    if task is not None and session is None:
        or_exit(lambda: _wrong("--task needs --session"))
    if status and session is None:
        or_exit(
            lambda: _wrong("--status needs --session: without it, unfinished tasks are replayed")
        )

    async def find_out() -> _Looked:
        if history:
            return await _replay_all(
                handlers, [(str(path), _of_file(path)) for path in history], at_once, timeout
            )
        async with client_of(url) as client:
            wanted: TaskFilters = {
                "session_id": session,
                "handler": handler,
                "status": status or _UNFINISHED,
            }
            found = await (
                _named(client, wanted, limit or _LIMIT)
                if session is None or task is None
                else _one(client, session, task, handler)
            )
            names = found[: limit or _LIMIT]
            reads = [(name, _of_store(client, name)) for name in names]
            replayed = await _replay_all(handlers, reads, at_once, timeout)
            replayed.more = len(found) > len(names)
            return replayed

    found = run(find_out())
    counts = Counter(report.verdict.value for report in found.reports)
    if as_json:
        print_json(
            {"replayed": len(found.reports), "fits": 0, "diverges": 0, "undecided": 0}
            | counts
            | {"more": found.more, "unread": found.unread}
            | {"tasks": [report.document() for report in found.reports]}
        )
    else:
        _print(found, counts, every=every)
    if found.more:
        complain(f"only the first {limit or _LIMIT} tasks were replayed: see --limit")
    if counts["diverges"] or found.unread or (found.more and limit is None):
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def history(
    session: SessionId,
    task: TaskId,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write it to this file. Default, and -: print it."),
    ] = None,
    url: Url = None,
) -> None:
    """Export a task's history as JSON: its input and all that its runs recorded.

    `redis-state replay --history FILE` and a unit test replay it without a server. It holds inputs
    and results, and no token. Status 3 if there is no such task.
    """

    async def read() -> TaskHistory:
        from redis_state.worker.tasks.histories import read_history  # noqa: PLC0415 - the extra

        async with client_of(url) as client:
            found = await read_history(client.store, session, task)
        if found is None:
            raise NotFound(f"session {harmless(session)!r} has no task {harmless(task)!r}")
        return found

    found = run(read())
    file = file_of(output)
    if file is None:
        print_line(found.document().decode("utf-8", "surrogatepass"))
    else:
        or_exit(partial(save_to, file, found.save))


def load_handlers(target: str) -> Mapping[str, Any]:
    """Import the handlers that a command names. Errors: CallerError."""
    from redis_state.worker import AgentWorker  # noqa: PLC0415 - needs the extra

    found = load(target, "MODULE:HANDLERS")
    if isinstance(found, AgentWorker):
        return found.handlers
    if isinstance(found, Mapping):
        handlers = dict(cast("Mapping[str, Any]", found))
        if all(map(callable, handlers.values())):
            return handlers
    raise CallerError(f"{target!r} is neither an AgentWorker nor a mapping of names to handlers")


async def _one(client: TaskClient, session: str, task: str, handler: str | None) -> Names:
    found = await client.inspect(session, task)
    if found is None or handler not in (None, found.handler):
        other = "" if found is None else f" of handler {harmless(handler or '')!r}"
        raise NotFound(f"session {harmless(session)!r} has no task {harmless(task)!r}{other}")
    return [(session, task)]


async def _named(client: TaskClient, wanted: TaskFilters, limit: int) -> Names:
    """Find the tasks that are meant: one more than the limit, if there are so many."""
    names: list[tuple[str, str]] = []
    async with aclosing(pages_of(client, limit + 1, **wanted)) as pages:
        async for tasks in pages:
            names += [(one.session_id, one.task_id) for one in tasks]
            if len(names) > limit:
                break
    return names[: limit + 1]


def _of_store(client: TaskClient, name: tuple[str, str]) -> Read:
    from redis_state.worker.tasks.histories import read_history  # noqa: PLC0415 - needs the extra

    async def read() -> TaskHistory | None:
        return await read_history(client.store, *name)

    return read


def _of_file(path: Path) -> Read:
    from redis_state.worker.tasks.histories import load_history  # noqa: PLC0415 - needs the extra

    async def read() -> TaskHistory:
        return load_history(path)

    return read


async def _replay_all(
    handlers: Mapping[str, Any],
    reads: Sequence[tuple[tuple[str, str] | str, Read]],
    at_once: int,
    timeout_s: float,
) -> _Looked:
    """Replay so many at a time, each read when its turn comes."""
    from redis_state.worker.runs.replaying import replay_history  # noqa: PLC0415 - needs the extra

    turn, reports, done = asyncio.Semaphore(at_once), dict[int, Any](), Counter[str]()
    unread = dict[int, dict[str, str]]()
    shown = sys.stderr.isatty()

    async def one(number: int, name: tuple[str, str] | str, read: Read) -> None:
        async with turn:
            try:
                found = await read()
            except (CorruptState, PayloadUnreadable, PayloadStoreUnavailable) as error:
                complain(f"not replayed: {error}")
                unread[number] = _unread(name, error)
                found = None
            if found is not None:
                reports[number] = await replay_history(handlers, found, timeout_s=timeout_s)
            done["all"] += 1
            if shown:
                print(f"\rreplayed {done['all']} of {len(reads)}", end="", file=sys.stderr)

    await asyncio.gather(*(one(number, *read) for number, read in enumerate(reads)))
    if shown:
        print("\r\033[K", end="", file=sys.stderr)
    return _Looked(
        reports=[reports[number] for number in sorted(reports)],
        unread=[unread[number] for number in sorted(unread)],
    )


def _unread(name: tuple[str, str] | str, error: Exception) -> dict[str, str]:
    if isinstance(name, str):
        return {"file": name, "why": str(error)}
    return {"session_id": name[0], "task_id": name[1], "why": str(error)}


def _print(found: _Looked, counts: Counter[str], *, every: bool) -> None:
    shown = [report for report in found.reports if every or not report.fits]
    if shown:
        columns = ("session", "task", "handler", "version", "status", "verdict", "why")
        rows = [
            (
                report.session_id,
                report.task_id,
                report.handler,
                report.version,
                report.status,
                report.verdict.value,
                f"{report.why}{_recorded(report)}",
            )
            for report in shown
        ]
        print_table(columns, rows, none="")
    unread = f", {len(found.unread)} could not be read" if found.unread else ""
    print_line(
        f"{len(found.reports)} replayed: {counts['fits']} fit, {counts['diverges']} diverge, "
        f"{counts['undecided']} undecided{unread}"
    )


def _recorded(report: ReplayReport) -> str:
    return f": {', '.join(report.recorded)}" if report.recorded and not report.called else ""


def _wrong(problem: str) -> None:
    raise CallerError(problem)
