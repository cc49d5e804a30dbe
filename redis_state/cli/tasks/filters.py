"""The options that choose tasks, for the commands that find them and those that change them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from redis_state.cli.arguments import moment_of
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.models.attributes import read_attributes

if TYPE_CHECKING:
    from redis_state.worker import TaskFilters

_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Statuses = Annotated[
    list[TaskStatus] | None,
    typer.Option("--status", case_sensitive=False, help="Only in this status; may be repeated."),
]
Handler = Annotated[str | None, typer.Option("--handler", help="Only tasks of this handler.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        "-a",
        metavar="NAME=VALUE",
        help="Only with this attribute; may be repeated. A number, true and false are that, all "
        'else is text; NAME="5" is the text 5.',
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only those made since: 30m, 2h, 7d, or an ISO time, in UTC by default.",
    ),
]
Before = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only those made before: likewise.")
]

EndedSince = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only those that ended since: likewise. The order is that of the ends then.",
    ),
]
EndedUntil = Annotated[
    str | None, typer.Option(metavar="TIME", help="Only those that ended before: likewise.")
]


def filters(
    *,
    session: str | None,
    status: Sequence[TaskStatus] | None,
    handler: str | None,
    attribute: Sequence[str] | None,
    since: str | None,
    until: str | None,
    ended_since: str | None,
    ended_until: str | None,
) -> TaskFilters:
    """Read the options that choose tasks. Errors: InvalidField."""
    return {
        "session_id": session,
        "status": status or None,
        "handler": handler,
        "attributes": read_attributes("--attribute", attribute or ()),
        "created_after": read_moment("--since", since),
        "created_before": read_moment("--until", until),
        "ended_after": read_moment("--ended-since", ended_since),
        "ended_before": read_moment("--ended-until", ended_until),
    }


def read_moment(option: str, text: str | None) -> datetime | None:
    """Read an age or an ISO time. Errors: InvalidField, which names the option."""
    if text is None:
        return None
    try:
        age = _AGE.fullmatch(text)
        if age is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        return moment_of(option, text)
    except (InvalidField, OverflowError):
        raise InvalidField(option, "is an age such as 30m, 2h or 7d, or an ISO time") from None
