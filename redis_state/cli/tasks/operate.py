"""The commands retry, rerun and fork: of one task, or of all that match."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import ExitCode, run
from redis_state.cli.output import harmless, print_json, print_line, task_document
from redis_state.cli.tasks.filters import Attribute, Before, Handler, Since, Statuses, filters
from redis_state.cli.tasks.reading import OfSession, client_of
from redis_state.errors import CallerError
from redis_state.models import TaskState, TaskStatus

if TYPE_CHECKING:
    from redis_state.worker import BulkItem, BulkReport, TaskFilters

OneSession = Annotated[
    str | None, typer.Argument(metavar="SESSION", help="The session of one task.")
]
OneTask = Annotated[str | None, typer.Argument(metavar="TASK", help="The task.")]
Yes = Annotated[
    bool, typer.Option("--yes", help="Change the tasks that match. Without it: a dry run.")
]
Key = Annotated[
    str | None,
    typer.Option(help="Name of this call. Repeating it under this name changes nothing twice."),
]
Most = Annotated[int, typer.Option(min=1, help="The most to change.")]


@app.command()
def retry(
    session: OneSession = None,
    task: OneTask = None,
    status: Statuses = None,
    handler: Handler = None,
    of_session: OfSession = None,
    attribute: Attribute = None,
    since: Since = None,
    until: Before = None,
    yes: Yes = False,
    key: Key = None,
    limit: Most = 10_000,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Reopen a FAILED or CANCELLED task, also a dead letter, with its journal.

    Recorded steps are not repeated. With filters instead of a task, all that match; that is a dry
    run without --yes. Status 3 if there is no such task, 4 if it cannot be reopened, 1 if one of
    many was not.

    Try: `redis-state find --status FAILED`, then `redis-state retry SESSION TASK`, or
    `redis-state retry --handler review --since 2h`, and with --yes.
    """
    chosen = _chosen(session, task, of_session, status, handler, attribute, since, until, yes=yes)
    if isinstance(chosen, tuple):

        async def do() -> TaskState:
            async with client_of(url) as client:
                return await client.retry(*chosen, key=key)

        state = run(do())
        _report(task_document(state), f"reopened; the task is {state.status.value}", as_json)
        return
    _all("retry", chosen, yes=yes, limit=limit, key=key, before=None, url=url, as_json=as_json)


@app.command()
def rerun(
    session: OneSession = None,
    task: OneTask = None,
    status: Statuses = None,
    handler: Handler = None,
    of_session: OfSession = None,
    attribute: Attribute = None,
    since: Since = None,
    until: Before = None,
    task_id: Annotated[
        str | None,
        typer.Option("--id", help="The new task's id. Repeating the command with it makes one."),
    ] = None,
    yes: Yes = False,
    key: Key = None,
    limit: Most = 10_000,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit a new task with the input of another, and print its id.

    With filters instead of a task, of all that match; that is a dry run without --yes. Status 3 if
    there is no such task, 4 if it has no handler, 1 if one of many was refused.

    Try: `redis-state rerun SESSION TASK`.
    """
    chosen = _chosen(session, task, of_session, status, handler, attribute, since, until, yes=yes)
    if isinstance(chosen, tuple):

        async def do() -> str:
            async with client_of(url) as client:
                return await client.rerun(*chosen, new_task_id=task_id)

        made = run(do())
        _report({"session_id": chosen[0], "task_id": made, "rerun_of": chosen[1]}, made, as_json)
        return
    _all("rerun", chosen, yes=yes, limit=limit, key=key, before=None, url=url, as_json=as_json)


@app.command()
def fork(
    session: OneSession = None,
    task: OneTask = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="STEP",
            help="What the new task does again: a step, a pause or a child, as `show` names it. "
            "Default: behind all that is recorded.",
        ),
    ] = None,
    status: Statuses = None,
    handler: Handler = None,
    of_session: OfSession = None,
    attribute: Attribute = None,
    since: Since = None,
    until: Before = None,
    task_id: Annotated[
        str | None,
        typer.Option("--id", help="The new task's id. Repeating the command with it makes one."),
    ] = None,
    yes: Yes = False,
    key: Key = None,
    limit: Most = 10_000,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit a new task with the journal of another up to a step, and print its id.

    With filters instead of a task, of all that match; that is a dry run without --yes. Status 2 if
    no such step is recorded, 3 if there is no such task, 4 if it has no handler.

    Try: `redis-state show SESSION TASK`, then `redis-state fork SESSION TASK --before charge`.
    """
    chosen = _chosen(session, task, of_session, status, handler, attribute, since, until, yes=yes)
    if isinstance(chosen, tuple):

        async def do() -> str:
            async with client_of(url) as client:
                return await client.fork(*chosen, before=before, new_task_id=task_id)

        made = run(do())
        facts = {"session_id": chosen[0], "task_id": made, "forked_from": chosen[1]}
        _report(facts | {"before": before}, made, as_json)
        return
    _all("fork", chosen, yes=yes, limit=limit, key=key, before=before, url=url, as_json=as_json)


def _chosen(
    session: str | None,
    task: str | None,
    of_session: str | None,
    status: list[TaskStatus] | None,
    handler: str | None,
    attribute: list[str] | None,
    since: str | None,
    until: str | None,
    *,
    yes: bool,
) -> tuple[str, str] | TaskFilters:
    """Return the one task that is meant, or the filters of many."""

    async def choose() -> tuple[str, str] | TaskFilters:
        found = filters(
            session=of_session,
            status=status,
            handler=handler,
            attribute=attribute,
            since=since,
            until=until,
        )
        filtered = any(found.values())
        if session is None:
            if not filtered:
                raise CallerError("name SESSION and TASK, or filters such as --status")
            return found
        if task is None or filtered or yes:
            raise CallerError("SESSION and TASK, or filters with --yes: one of the two")
        return session, task

    return run(choose())


def _all(
    action: str,
    chosen: TaskFilters,
    *,
    yes: bool,
    limit: int,
    key: str | None,
    before: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    def show(item: BulkItem) -> None:
        if not as_json:
            made = f"  as {item.new_task_id}" if item.new_task_id else ""
            why = f"  {harmless(item.reason)}" if item.reason else ""
            word = f"would {action}" if item.outcome == "would" else item.outcome.value
            print_line(f"{word}  {harmless(item.session_id)}  {harmless(item.task_id)}{made}{why}")

    async def do() -> BulkReport:
        async with client_of(url) as client:
            return await client.bulk(
                action,
                dry_run=not yes,
                limit=limit,
                key=key,
                before=before,
                progress=show,
                **chosen,
            )

    report = run(do())
    if as_json:
        print_json(
            {
                "action": action,
                "dry_run": not yes,
                "counts": {word.value: number for word, number in report.counts.items()},
                "more": report.more,
                "items": [asdict(item) for item in report.items],
            }
        )
    else:
        told = [f"{number} {word.value}" for word, number in report.counts.items() if number]
        hint = "" if yes or not report.items else "; nothing was changed: repeat it with --yes"
        print_line(f"{', '.join(told) or 'no task matches'}{hint}")
    if any(item.outcome in ("refused", "failed") for item in report.items):
        raise typer.Exit(ExitCode.FAILED)


def _report(document: dict[str, Any], text: str, as_json: bool) -> None:  # noqa: FBT001 - private
    if as_json:
        print_json(document)
    else:
        print_line(text)
