"""Which tasks a caller wants, checked, and the lists of the index that have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack, cast

from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.models.attributes import Attributes, AttributeValue, check_attributes
from redis_state.scripts import raw
from redis_state.stores.task_index import LETTERS, attribute_list, listed_us
from redis_state.worker.tasks.views.summary import TaskSummary


class TaskFilters(TypedDict, total=False):
    """The filters of `TaskClient.find`."""

    status: TaskStatus | str | Iterable[TaskStatus | str] | None
    handler: str | None
    session_id: str | None
    attributes: Attributes | None
    created_after: datetime | None
    created_before: datetime | None
    ended_after: datetime | None
    ended_before: datetime | None


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks are wanted, checked. By their ends the ``statuses`` are terminal ones."""

    statuses: tuple[TaskStatus, ...]
    handler: str | None
    session_id: str | None
    attributes: Mapping[str, AttributeValue]
    created_after: datetime | None
    created_before: datetime | None
    ended_after: datetime | None = None
    ended_before: datetime | None = None

    @classmethod
    def read(
        cls,
        **given: Unpack[TaskFilters],
    ) -> TaskFilter:
        """Check what a caller asks for. Errors: InvalidField."""
        for name in given.keys() - TaskFilters.__annotations__.keys():
            raise InvalidField(name, f"is no filter: {', '.join(TaskFilters.__annotations__)}")
        attributes = given.get("attributes")
        ended_after = _moment("ended_after", given.get("ended_after"))
        ended_before = _moment("ended_before", given.get("ended_before"))
        statuses = _statuses(given.get("status"))
        if ended_after is not None or ended_before is not None:
            statuses = tuple(status for status in statuses if status.is_terminal)
            if not statuses:
                able = ", ".join(status for status in TaskStatus if status.is_terminal)
                raise InvalidField("status", f"tasks have an end in {able} alone")
        return cls(
            statuses=statuses,
            handler=_text("handler", given.get("handler")),
            session_id=_text("session_id", given.get("session_id")),
            attributes=check_attributes("attributes", {} if attributes is None else attributes),
            created_after=_moment("created_after", given.get("created_after")),
            created_before=_moment("created_before", given.get("created_before")),
            ended_after=ended_after,
            ended_before=ended_before,
        )

    @property
    def by_end(self) -> bool:
        """Whether tasks are listed in the order of their ends, and not of their creation."""
        return self.ended_after is not None or self.ended_before is not None

    @property
    def lists(self) -> list[tuple[str, bytes]]:
        """Return the lists of the index that the tasks are all in, a kind and a value each.

        They are in the order of creation.
        """
        lists = [] if self.session_id is None else [("s", raw(self.session_id))]
        lists += [("a", attribute_list(*each)) for each in sorted(self.attributes.items())]
        lists += [] if self.handler is None else [("h", raw(self.handler))]
        return lists or [("*", b"")]

    @property
    def letters(self) -> str:
        """Return the statuses as the index has them."""
        return "".join(LETTERS[status] for status in self.statuses)

    def description(self, *, newest_first: bool) -> list[Any]:
        """Return what distinguishes this listing from others."""
        made = [each and each.isoformat() for each in (self.created_after, self.created_before)]
        ended = [each and each.isoformat() for each in (self.ended_after, self.ended_before)]
        named = [[kind, value.decode("latin-1")] for kind, value in self.lists]
        return [self.letters, named, made, newest_first, *([ended] if self.by_end else [])]

    def matches(self, task: TaskSummary, us: int) -> bool:
        """Return whether a task is one of those, and still the one that was listed by a time.

        A task that ended again has the place of that end.
        """
        return (
            task.status in self.statuses
            and (not self.by_end or listed_us(task.updated_at) == us)
            and self.session_id in (None, task.session_id)
            and self.handler in (None, task.handler)
            and all(
                name in task.attributes and _same(task.attributes[name], value)
                for name, value in self.attributes.items()
            )
            and _within(task.created_at, self.created_after, self.created_before)
            # A terminal task changes no more.
            and _within(task.updated_at, self.ended_after, self.ended_before)
        )


def _statuses(
    status: TaskStatus | str | Iterable[TaskStatus | str] | None,
) -> tuple[TaskStatus, ...]:
    if status is None:
        return tuple(TaskStatus)
    given = [status] if isinstance(status, str) else cast("Iterable[Any]", status)
    try:
        return tuple(dict.fromkeys(TaskStatus(each) for each in given)) or tuple(TaskStatus)
    except (ValueError, TypeError):
        names = ", ".join(TaskStatus)
        raise InvalidField("status", f"one or several of {names} are needed") from None


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidField(name, f"text is needed, not {type(value).__name__}")


def _moment(name: str, value: Any) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    raise InvalidField(name, f"a datetime is needed, not {type(value).__name__}")


def _within(moment: datetime, since: datetime | None, before: datetime | None) -> bool:
    us = listed_us(moment)
    return (since is None or listed_us(since) <= us) and (before is None or us < listed_us(before))


def _same(one: AttributeValue, other: AttributeValue) -> bool:
    return type(one) is type(other) and one == other
