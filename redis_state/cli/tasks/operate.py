"""The commands retry, rerun and fork: of one task, or of all that match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.client import client_of
from redis_state.cli.commands import app
from redis_state.cli.exit_codes import ExitCode, Making, complain, run
from redis_state.cli.output import harmless, print_json, print_line
from redis_state.cli.tasks.selection import Selection, selecting
from redis_state.documents import task_document
from redis_state.models import TaskState
from redis_state.models.tasks import new_id

if TYPE_CHECKING:
    from redis_state.worker import BulkItem, BulkReport, TaskClient, TaskFilters

TaskIdOfCopy = Annotated[
    str | None,
    typer.Option("--id", help="The new task's id. Repeating the command with it makes one."),
]


@app.command()
@selecting
def retry(which: Selection) -> None:
    """Reopen a FAILED or CANCELLED task, also a dead letter, with its journal.

    Recorded steps are not repeated. With filters instead of a task, all that match; that is a dry
    run without --yes. Status 3 if there is no such task, 4 if it cannot be reopened, 1 if one of
    many was not.

    Try: `redis-state find --status FAILED`, then `redis-state retry SESSION TASK`, or
    `redis-state retry --handler review --ended-since 2h`, and with --yes.
    """
    chosen = which.chosen()
    if isinstance(chosen, tuple):

        async def do() -> TaskState:
            async with client_of(which.url) as client:
                return await client.retry(*chosen, idempotency_key=which.idempotency_key)

        state = run(do())
        _report(task_document(state), f"reopened; the task is {state.status.value}", which.as_json)
        return
    _all("retry", chosen, which)


@app.command()
@selecting
def rerun(which: Selection, task_id: TaskIdOfCopy = None) -> None:
    """Submit a new task with the input of another, and print its id.

    With filters instead of a task, of all that match; that is a dry run without --yes. Status 3 if
    there is no such task, 1 if one of many was refused. Status 4 if it has no handler, or if
    another task has the id.

    Try: `redis-state rerun SESSION TASK`.
    """
    chosen = which.chosen()
    if isinstance(chosen, tuple):
        named = new_id() if task_id is None else task_id

        async def do() -> str:
            async with client_of(which.url) as client:
                made = await client.rerun(*chosen, new_task_id=named)
                await _check(client, "rerun", chosen, task_id)
                return made

        made = run(do(), making=Making.named("--id", named))
        _report(
            {"session_id": chosen[0], "task_id": made, "rerun_of": chosen[1]}, made, which.as_json
        )
        return
    _all("rerun", chosen, which)


@app.command()
@selecting
def fork(
    which: Selection,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="STEP",
            help="What the new task does again: a step, a pause or a child, as `show` names it. "
            "Default: behind all that is recorded.",
        ),
    ] = None,
    task_id: TaskIdOfCopy = None,
) -> None:
    """Submit a new task with the journal of another up to a step, and print its id.

    With filters instead of a task, of all that match; that is a dry run without --yes. Status 2 if
    no such step is recorded, 3 if there is no such task. Status 4 if it has no handler, or if
    another task has the id.

    Try: `redis-state show SESSION TASK`, then `redis-state fork SESSION TASK --before charge`.
    """
    chosen = which.chosen()
    if isinstance(chosen, tuple):
        named = new_id() if task_id is None else task_id

        async def do() -> str:
            async with client_of(which.url) as client:
                made = await client.fork(*chosen, before=before, new_task_id=named)
                await _check(client, "fork", chosen, task_id, before)
                return made

        made = run(do(), making=Making.named("--id", named))
        facts = {"session_id": chosen[0], "task_id": made, "forked_from": chosen[1]}
        _report(facts | {"before": before}, made, which.as_json)
        return
    _all("fork", chosen, which, before=before)


async def _check(
    client: TaskClient,
    action: str,
    source: tuple[str, str],
    task_id: str | None,
    before: str | None = None,
) -> None:
    """Check that the task of a given id is what was to be made. Errors: KeyReused."""
    if task_id is None:
        return
    from redis_state.worker.tasks.operate.copies import (  # noqa: PLC0415 - the extra
        check_copied,
        check_forked,
    )

    view = await client.inspect(source[0], task_id)
    if view is not None and action == "rerun":
        check_copied(action, view.rerun_of, *source)
    elif view is not None:
        check_forked(check_copied(action, view.forked_from, *source), before)


def _all(action: str, chosen: TaskFilters, which: Selection, *, before: str | None = None) -> None:
    items: list[BulkItem] = []
    # Without a key of the caller's, what is cut off could not be repeated without second copies.
    key = new_id() if which.idempotency_key is None else which.idempotency_key
    making = None if which.changes_nothing else Making.named("--idempotency-key", key)

    def show(item: BulkItem) -> None:
        items.append(item)
        if not which.as_json:
            made = f"  as {item.new_task_id}" if item.new_task_id else ""
            why = f"  {harmless(item.reason)}" if item.reason else ""
            word = f"would {action}" if item.outcome == "would" else item.outcome.value
            print_line(f"{word}  {harmless(item.session_id)}  {harmless(item.task_id)}{made}{why}")

    async def do() -> BulkReport:
        async with client_of(which.url) as client:
            return await client.bulk(
                action,
                dry_run=which.changes_nothing,
                limit=which.limit,
                idempotency_key=key,
                before=before,
                progress=show,
                **chosen,
            )

    try:
        report = run(do())
    except typer.Exit:
        if making is not None and items:
            complain(making.repeat)
        # What was done before it was interrupted, or failed, is done.
        if which.as_json and items:
            print_json(_document(action, which, items, more=True))
        raise
    if which.as_json:
        print_json(_document(action, which, report.items, more=report.more))
    else:
        counts = [f"{number} {word.value}" for word, number in report.counts.items() if number]
        hint = (
            "; nothing was changed: repeat it with --yes"
            if report.items and which.changes_nothing and not which.dry_run
            else ""
        )
        print_line(f"{', '.join(counts) or 'no task matches'}{hint}")
    if making is not None and any(item.outcome == "failed" for item in report.items):
        complain(making.repeat)
    if any(item.outcome in ("refused", "failed") for item in report.items):
        raise typer.Exit(ExitCode.FAILED)


def _document(
    action: str, which: Selection, items: Sequence[BulkItem], *, more: bool
) -> dict[str, Any]:
    from redis_state.worker import BulkOutcome  # noqa: PLC0415 - needs the extra

    counts = Counter(item.outcome for item in items)
    return {
        "action": action,
        "dry_run": which.changes_nothing,
        "counts": {word.value: counts[word] for word in BulkOutcome},
        "more": more,
        "items": [asdict(item) for item in items],
    }


def _report(document: dict[str, Any], text: str, as_json: bool) -> None:  # noqa: FBT001 - private
    if as_json:
        print_json(document)
    else:
        print_line(text)
