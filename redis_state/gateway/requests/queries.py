"""What the queries of requests may say. An unknown parameter is refused."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from redis_state.errors import InvalidField
from redis_state.gateway.requests.fields import Given, Limit, Seconds
from redis_state.models import TaskStatus
from redis_state.worker import Archived
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor


class PageQuery(Given):
    """Which page of a list."""

    limit: Limit = 100
    after: str | None = Field(default=None, description="The cursor of the page before.")


class PartQuery(Given):
    """Which page of a list; without parameters it is one page."""

    limit: Limit | None = Field(default=None, description="How many at most; else all.")
    after: str | None = Field(default=None, description="The cursor of the page before.")

    def place(self, listing: str) -> str | None:
        """Return the name behind which the page begins. Errors: InvalidField."""
        if self.after is None:
            return None
        try:
            return read_cursor(listing, self.after).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise InvalidField("after", "is no cursor of this listing") from None

    @staticmethod
    def cursor(listing: str, last: str | None) -> str | None:
        """Return the cursor of the page behind a name; None if it was the last page."""
        if last is None:
            return None
        return write_cursor(listing, last.encode("utf-8", "surrogatepass"))


class ForgetQuery(Given):
    """How to erase a session."""

    dry_run: bool = Field(default=False, description="Count, and remove nothing.")
    running: Literal["cancel", "refuse", "fence"] = Field(
        default="cancel", description="What becomes of tasks that run."
    )
    leave_unset: bool = Field(
        default=False,
        description="Leave an archive, or durable events, that the gateway has no setting for.",
    )


class FindQuery(PageQuery):
    """Which tasks."""

    status: list[TaskStatus] | None = None
    handler: str | None = None
    session_id: str | None = None
    attribute: list[str] | None = Field(
        default=None,
        description="NAME=VALUE; may be repeated. A number, true and false are that, all else is "
        'text; NAME="5" is the text 5.',
    )
    created_after: AwareDatetime | None = None
    created_before: AwareDatetime | None = None
    ended_after: AwareDatetime | None = Field(
        default=None,
        description="Only tasks that ended since, in the order of their ends.",
    )
    ended_before: AwareDatetime | None = Field(
        default=None,
        description="Only tasks that ended before, in the order of their ends.",
    )
    oldest_first: bool = False
    archived: Archived = Field(
        default=Archived.NO,
        description="Whether tasks are found that are only in the archive by now.",
    )


class DeadQuery(PageQuery):
    """Which page of the dead letters."""


class TimelineQuery(PageQuery):
    """Which page of a task's updates."""


class UpdatesQuery(PageQuery):
    """Which page of a session's updates."""

    after: str | None = Field(
        default=None, description="A cursor of a page, or of a stream of events, or 0 for all."
    )
    task: str | None = Field(default=None, description="Only of this task.")


class QueueKeysQuery(Given):
    """How many keys of a queue."""

    limit: Limit = 100


class EventsQuery(Given):
    """Which updates of a session."""

    after: str | None = Field(default=None, description="A cursor, $ for the end, or 0 for all.")
    task: str | None = Field(default=None, description="Only of this task, until it is terminal.")
    types: list[str] | None = Field(default=None, description="Only updates of these types.")


class PausesQuery(PageQuery):
    """Which open pauses."""

    tag: str | None = None
    session_id: str | None = None
    older_than: Seconds | None = Field(default=None, description="Only those open so long, in s.")
    mine: bool = Field(default=False, description="Only those that the caller may decide now.")
