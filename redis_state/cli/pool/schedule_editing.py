"""``redis-state schedules edit``: change of a schedule only what is given."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redis_state.cli.arguments import json_of, length_of
from redis_state.cli.commands import AsJson, Url
from redis_state.cli.pool.schedules import (
    Anchor,
    Cron,
    Description,
    End,
    Every,
    Expected,
    Id,
    Input,
    LimitKey,
    OnBusy,
    Paused,
    Queue,
    Start,
    moment_or_none,
    print_schedule,
    schedules,
    with_schedules,
)
from redis_state.models.attributes import read_attributes

if TYPE_CHECKING:
    from redis_state.worker import Schedules, ScheduleView


class Clearable(StrEnum):
    """What `edit` can take away again."""

    ANCHOR = "anchor"
    START = "start"
    END = "end"
    INPUT = "input"
    DESCRIPTION = "description"
    ATTRIBUTES = "attributes"
    LIMIT_KEY = "limit-key"
    ON_BUSY = "on-busy"


@schedules.command()
def edit(
    schedule_id: Id,
    handler: Annotated[str | None, typer.Option(help="Who runs its tasks.")] = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="The session of its tasks, as for create.")
    ] = None,
    cron: Cron = None,
    timezone: Annotated[
        str | None, typer.Option(help="IANA time zone of --cron and of {date}.")
    ] = None,
    every: Every = None,
    anchor: Anchor = None,
    start: Start = None,
    end: End = None,
    task_input: Input = None,
    queue: Queue = None,
    priority: Annotated[int | None, typer.Option(help="The priority of its tasks.")] = None,
    description: Description = None,
    missed: Annotated[str | None, typer.Option(help="skip, latest or all, as for create.")] = None,
    max_missed: Annotated[
        int | None, typer.Option(help="The most that --missed all makes up for.")
    ] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="How late is still in time.")
    ] = None,
    overlap: Annotated[str | None, typer.Option(help="allow or skip, as for create.")] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set this attribute; may be repeated."),
    ] = None,
    limit_key: LimitKey = None,
    in_turn: Annotated[
        bool | None,
        typer.Option("--in-turn/--no-in-turn", help="The tasks of a session run one at a time."),
    ] = None,
    on_busy: OnBusy = None,
    clear: Annotated[
        list[Clearable] | None, typer.Option(help="Take this away; may be repeated.")
    ] = None,
    paused: Paused = None,
    expected: Expected = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Change a schedule: only what is given. All else stays as it is.

    --cron takes --every and its anchor away, and the other way round. Other times count from now
    on. Times without an offset are UTC. Status 3 if there is no such schedule. 4 if another caller
    changed it meanwhile, or it is at another revision than --expected: then nothing was changed.

    Try: `redis-state schedules edit nightly --cron '0 3 * * *'`.
    """

    async def change(known: Schedules) -> ScheduleView:
        view = await known.get(schedule_id)
        changes: dict[str, Any] = {
            **{name.value.replace("-", "_"): None for name in clear or ()},
            **({} if cron is None else {"every": None, "anchor": None}),
            **({} if every is None else {"cron": None}),
        }
        if "attributes" in changes:
            changes["attributes"] = {}
        given: dict[str, Any] = {
            "handler": handler,
            "session_id": session,
            "cron": cron,
            "timezone": timezone,
            "every": None if every is None else length_of("--every", every),
            "anchor": moment_or_none("--anchor", anchor),
            "start": moment_or_none("--start", start),
            "end": moment_or_none("--end", end),
            "queue": queue,
            "priority": priority,
            "description": description,
            "missed": missed,
            "max_missed": max_missed,
            "grace": None if grace is None else length_of("--grace", grace),
            "overlap": overlap,
            "limit_key": limit_key,
            "in_turn": in_turn,
            "on_busy": on_busy,
        }
        changes |= {name: value for name, value in given.items() if value is not None}
        if task_input is not None:
            changes["input"] = json_of("--input", task_input)
        if attribute:
            kept = changes.get("attributes", view.schedule.attributes)
            changes["attributes"] = {**kept, **read_attributes("--attribute", attribute)}
        wanted = replace(view.schedule, **changes)
        return await known.save(wanted, paused=paused, expected=expected or view.revision)

    print_schedule(with_schedules(url, change), as_json=as_json)
