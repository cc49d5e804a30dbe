"""``redis-state schedules``: list, create, pause, trigger and backfill schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from redis_state.cli.arguments import json_of, length_of, moment_of
from redis_state.cli.client import client_of
from redis_state.cli.commands import AsJson, Url, app
from redis_state.cli.exit_codes import Making, run
from redis_state.cli.output import age, harmless, print_json, print_line, print_table
from redis_state.documents import occurrence_document, schedule_document
from redis_state.errors import ScheduleUnknown
from redis_state.models.attributes import read_attributes
from redis_state.models.tasks import new_id

if TYPE_CHECKING:
    from redis_state.worker import Schedules, ScheduleView

T = TypeVar("T")

# Workers look once a second.
_SOON = timedelta(seconds=10)

schedules: typer.Typer = typer.Typer(
    name="schedules",
    help="Tasks that are submitted at their times.\n\n"
    "A schedule names a handler, a session and its times: a cron expression in a time zone, or an "
    "interval. Any worker submits each occurrence, once. `create` also replaces a schedule: the "
    "same call again changes nothing. `edit` changes what is given.\n\n"
    "Try: `redis-state schedules create nightly report 'nightly-{date}' --cron '0 2 * * *' "
    "--timezone Europe/Berlin`, then `redis-state schedules list`.\n\n"
    "Exit status: as for all of redis-state.",
    no_args_is_help=True,
)
app.add_typer(schedules)


Id = Annotated[str, typer.Argument(metavar="ID", help="The schedule's id.")]
Cron = Annotated[
    str | None,
    typer.Option(help="Cron expression: '0 9 * * MON-FRI'. Six fields have seconds first."),
]
Timezone = Annotated[str, typer.Option(help="IANA time zone of --cron and of {date}.")]
Every = Annotated[str | None, typer.Option(metavar="LENGTH", help="Interval: 90s, 15m, 6h or 1d.")]
Anchor = Annotated[
    str | None, typer.Option(metavar="TIME", help="A moment that --every counts from.")
]
Start = Annotated[str | None, typer.Option(metavar="TIME", help="The first moment that counts.")]
End = Annotated[
    str | None, typer.Option(metavar="TIME", help="The first moment that does not any more.")
]
Input = Annotated[
    str | None, typer.Option("--input", metavar="JSON", help="The input of its tasks.")
]
Queue = Annotated[str | None, typer.Option(help="The queue of its tasks.")]
Priority = Annotated[int, typer.Option(help="The priority of its tasks.")]
Description = Annotated[str | None, typer.Option(help="The description of its tasks.")]
Missed = Annotated[
    str, typer.Option(help="Occurrences that no worker saw in time: skip, latest or all of them.")
]
MaxMissed = Annotated[int, typer.Option(help="The most that --missed all makes up for.")]
Grace = Annotated[str, typer.Option(metavar="LENGTH", help="How late is still in time.")]
Overlap = Annotated[
    str, typer.Option(help="While the last task is unfinished: allow the next, or skip it.")
]
Attribute = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An attribute that its tasks are found by; may be repeated. As for find.",
    ),
]
LimitKey = Annotated[str | None, typer.Option(help="Limits of this key hold for its tasks.")]
OnBusy = Annotated[
    str | None,
    typer.Option(
        help="While a task of the session that runs in turn is unfinished: enqueue, interrupt "
        "or replace."
    ),
]
Paused = Annotated[
    bool | None,
    typer.Option("--paused/--active", help="Pause or resume it. Default: leave that."),
]
Expected = Annotated[
    str | None,
    typer.Option(metavar="REVISION", help="Change it only at this revision, as `show` has it."),
]


@schedules.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List all schedules: when each is due, and what it submitted last.

    Due in the past means that no worker looks at schedules.
    """
    found = with_schedules(url, lambda known: known.list())
    if as_json:
        print_json([_document(view) for view in found])
        return
    columns = ("id", "handler", "when", "next", "last", "task", "fired")
    print_table(columns, (_row(view) for view in found), none="no schedules")


@schedules.command()
def show(schedule_id: Id, url: Url = None, as_json: AsJson = False) -> None:
    """Show a schedule, with the status of its last task. `--json` prints its input too.

    Status 3 if there is no such schedule.
    """
    print_schedule(
        with_schedules(url, lambda known: known.get(schedule_id)), as_json=as_json, whole=True
    )


@schedules.command()
def create(
    schedule_id: Id,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="Who runs its tasks.")],
    session: Annotated[
        str,
        typer.Argument(
            metavar="SESSION",
            help="The session of its tasks. {date}, {time}, {at} and {schedule} name the "
            "occurrence; other braces are doubled.",
        ),
    ],
    cron: Cron = None,
    timezone: Timezone = "UTC",
    every: Every = None,
    anchor: Anchor = None,
    start: Start = None,
    end: End = None,
    task_input: Input = None,
    queue: Queue = None,
    priority: Priority = 0,
    description: Description = None,
    missed: Missed = "skip",
    max_missed: MaxMissed = 100,
    grace: Grace = "60s",
    overlap: Overlap = "allow",
    attribute: Attribute = None,
    limit_key: LimitKey = None,
    in_turn: Annotated[
        bool, typer.Option("--in-turn", help="The tasks of a session run one at a time.")
    ] = False,
    on_busy: OnBusy = None,
    paused: Paused = None,
    expected: Expected = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a schedule, or replace the one with this ID: what is not given gets its default.

    `edit` changes only what is given. Other times count from now on. Times without an offset are
    UTC. Status 2 names what cannot be used, 4 if it is at another
    revision than --expected.

    Try: `redis-state schedules create poll fetch poller --every 15m --overlap skip`.
    """

    def save(known: Schedules) -> Awaitable[ScheduleView]:
        from redis_state.worker import Schedule  # noqa: PLC0415 - needs the extra

        wanted: dict[str, Any] = {"missed": missed, "overlap": overlap, "on_busy": on_busy}
        schedule = Schedule(
            schedule_id=schedule_id,
            handler=handler,
            session_id=session,
            cron=cron,
            timezone=timezone,
            every=None if every is None else length_of("--every", every),
            anchor=moment_or_none("--anchor", anchor),
            start=moment_or_none("--start", start),
            end=moment_or_none("--end", end),
            input=None if task_input is None else json_of("--input", task_input),
            queue=queue,
            priority=priority,
            description=description,
            max_missed=max_missed,
            grace=length_of("--grace", grace),
            attributes=read_attributes("--attribute", attribute or ()),
            limit_key=limit_key,
            in_turn=in_turn,
            **wanted,
        )
        return known.save(schedule, paused=paused, expected=expected)

    print_schedule(with_schedules(url, save), as_json=as_json)


@schedules.command()
def pause(schedule_id: Id, url: Url = None, as_json: AsJson = False) -> None:
    """Pause a schedule: nothing is due until it is resumed. Status 3 if there is none."""
    print_schedule(with_schedules(url, lambda known: known.pause(schedule_id)), as_json=as_json)


@schedules.command()
def resume(schedule_id: Id, url: Url = None, as_json: AsJson = False) -> None:
    """Resume a schedule. `backfill` makes up for the pause. Status 3 if there is none."""
    print_schedule(with_schedules(url, lambda known: known.resume(schedule_id)), as_json=as_json)


@schedules.command()
def trigger(
    schedule_id: Id,
    idempotency_key: Annotated[
        str | None,
        typer.Option(help="Name of this call. Repeating it under this name is the same task."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit a task of a schedule now, also of a paused one. Status 3 if there is none.

    Try: `redis-state schedules trigger nightly --idempotency-key ticket-7`, then
    `redis-state tail SESSION TASK`.
    """
    key = new_id() if idempotency_key is None else idempotency_key
    task = with_schedules(
        url,
        lambda known: known.trigger(schedule_id, idempotency_key=key),
        making=Making.named("--idempotency-key", key),
    )
    if as_json:
        print_json(occurrence_document(task))
    else:
        print_line(f"submitted {harmless(task.session_id)} {harmless(task.task_id)}")


@schedules.command()
def backfill(
    schedule_id: Id,
    since: Annotated[str, typer.Argument(metavar="FROM", help="The first moment.")],
    until: Annotated[str, typer.Argument(metavar="TO", help="Where it ends, itself not included.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: list what would be submitted.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Refuse to submit more.")] = 1_000,
    limit_key: Annotated[
        str | None,
        typer.Option(help="Limits of this key hold for them, in place of the schedule's own."),
    ] = None,
    overlap: Annotated[
        str, typer.Option(help="allow, or enqueue: they run one at a time, the oldest first.")
    ] = "allow",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Submit the occurrences of a time that has passed. Those that have a task are left alone.

    It submits at once: --dry-run lists first. `queues limit QUEUE --limit-key KEY --running 2`,
    and then --limit-key, let a long one run two at a time; --overlap enqueue, one at
    a time. Times without an offset are UTC. Status 3 if there is no such schedule.

    Try: `redis-state schedules backfill nightly 2026-11-01 2026-11-08 --dry-run`.
    """

    def fill(known: Schedules) -> Awaitable[Any]:
        first, behind = moment_of("FROM", since), moment_of("TO", until)
        options: Any = {"limit": limit, "limit_key": limit_key, "overlap": overlap}
        return known.backfill(schedule_id, first, behind, dry_run=dry_run, **options)

    done = with_schedules(url, fill)
    if as_json:
        print_json([occurrence_document(each) for each in done])
        return
    rows = ((each.at, each.session_id, each.task_id, each.state) for each in done)
    print_table(("at", "session", "task", "state"), rows, none="no occurrences")


@schedules.command()
def delete(schedule_id: Id, url: Url = None, as_json: AsJson = False) -> None:
    """Delete a schedule. Its tasks stay. Status 3 if there is none."""

    async def remove(known: Schedules) -> None:
        if not await known.delete(schedule_id):
            raise ScheduleUnknown(schedule_id)

    with_schedules(url, remove)
    if as_json:
        print_json({"schedule_id": schedule_id, "deleted": True})
    else:
        print_line("deleted")


def with_schedules(
    url: str | None, work: Callable[[Schedules], Awaitable[T]], *, making: Making | None = None
) -> T:
    """Do some work with the schedules of the server that a command names."""

    async def do() -> T:
        async with client_of(url) as client:
            return await work(client.schedules)

    return run(do(), making=making)


def print_schedule(view: ScheduleView, *, as_json: bool, whole: bool = False) -> None:
    """Print a schedule; its input too, if ``whole``."""
    document = _document(view, whole=whole)
    if as_json:
        print_json(document)
        return
    document.pop("input", None)
    shown = {name: value for name, value in document.items() if value not in (None, "")}
    if view.last is not None:
        shown["last"] = f"{view.last.session_id} {view.last.task_id}"
    print_table(("field", "value"), shown.items(), none="")


def _document(view: ScheduleView, *, whole: bool = False) -> dict[str, Any]:
    document = schedule_document(view)
    return document | ({"input": view.schedule.input} if whole else {})


def _row(view: ScheduleView) -> tuple[Any, ...]:
    schedule, last = view.schedule, view.last
    when = f"{schedule.cron} {schedule.timezone}" if schedule.cron else f"every {schedule.every}"
    due = "paused" if view.paused else "ended" if view.next_at is None else _due(view.next_at)
    return (
        schedule.schedule_id,
        schedule.handler,
        when,
        due,
        f"{age(last.at)} ago" if last is not None and last.at is not None else "",
        "" if last is None else f"{last.session_id} {last.task_id}",
        view.fired,
    )


def _due(moment: datetime) -> str:
    late = datetime.now(UTC) - moment
    if late < timedelta(0):
        return f"in {age(moment)}"
    return "now" if late < _SOON else f"overdue for {age(moment)}"


def moment_or_none(option: str, text: str | None) -> datetime | None:
    """Read a moment that may not be given."""
    return None if text is None else moment_of(option, text)
