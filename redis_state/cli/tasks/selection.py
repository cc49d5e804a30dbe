"""Which tasks a command changes: one, or all that match; and what is the same for each action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from redis_state.cli.client import OfSession
from redis_state.cli.commands import AsJson, Url
from redis_state.cli.exit_codes import run
from redis_state.cli.tasks.filters import (
    Attribute,
    Before,
    EndedSince,
    EndedUntil,
    Handler,
    Since,
    Statuses,
    filters,
)
from redis_state.errors import CallerError

if TYPE_CHECKING:
    from redis_state.worker import TaskFilters

P = ParamSpec("P")

OneSession = Annotated[
    str | None, typer.Argument(metavar="SESSION", help="The session of one task.")
]
OneTask = Annotated[str | None, typer.Argument(metavar="TASK", help="The task.")]
Yes = Annotated[
    bool, typer.Option("--yes", help="Change the tasks that match. Without it: a dry run.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Change nothing: list what would be. So it is without --yes."),
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(help="Name of this call. Repeating it under this name changes nothing twice."),
]
Most = Annotated[int, typer.Option(min=1, help="The most to change.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The arguments and options that the commands retry, rerun and fork have in common."""

    session: OneSession = None
    task: OneTask = None
    status: Statuses = None
    handler: Handler = None
    of_session: OfSession = None
    attribute: Attribute = None
    since: Since = None
    until: Before = None
    ended_since: EndedSince = None
    ended_until: EndedUntil = None
    yes: Yes = False
    dry_run: DryRun = False
    idempotency_key: IdempotencyKey = None
    limit: Most = 10_000
    url: Url = None
    as_json: AsJson = False

    @property
    def changes_nothing(self) -> bool:
        """Whether it is a dry run: so it is without ``yes``, and with ``dry_run`` in any case."""
        return self.dry_run or not self.yes

    def chosen(self) -> tuple[str, str] | TaskFilters:
        """Return the one task that is meant, or the filters of many."""

        async def choose() -> tuple[str, str] | TaskFilters:
            found = filters(
                session=self.of_session,
                status=self.status,
                handler=self.handler,
                attribute=self.attribute,
                since=self.since,
                until=self.until,
                ended_since=self.ended_since,
                ended_until=self.ended_until,
            )
            filtered = any(found.values())
            if self.session is None:
                if not filtered:
                    raise CallerError("name SESSION and TASK, or filters such as --status")
                return found
            if self.task is None or filtered or self.yes or self.dry_run:
                raise CallerError(
                    "SESSION and TASK, or filters with --yes or --dry-run: one of the two"
                )
            return self.session, self.task

        return run(choose())


def selecting(command: Callable[Concatenate[Selection, P], None]) -> Callable[..., None]:
    """Give a command the arguments and options of a `Selection`, which it takes as one."""
    hints = get_type_hints(Selection, include_extras=True)
    shared = [
        Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(Selection)
    ]
    own_hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=own_hints[parameter.name])
        for parameter in list(signature(command).parameters.values())[1:]
    ]
    # Its own options stand behind the two arguments.
    together = [*shared[:2], *own, *shared[2:]]

    @wraps(command)
    def called(**given: Any) -> None:
        selection = Selection(**{field.name: given.pop(field.name) for field in fields(Selection)})
        command(selection, **given)  # type: ignore[call-arg]

    # Typer reads both.
    called.__signature__ = Signature(together)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
    return called
