"""A session's updates in pages, also those that are only in the archive."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from redis_state.errors import CursorGap, InvalidField
from redis_state.gateway.answers import answer
from redis_state.gateway.archived_updates import updates_over_gap, updates_through
from redis_state.gateway.calls import ApiCall, Operation
from redis_state.gateway.requests.queries import UpdatesQuery
from redis_state.gateway.results import UpdatesResult
from redis_state.gateway.showing.visible import shown_rows
from redis_state.gateway.streaming.events import ALL, TAIL, check_cursor
from redis_state.models import StateUpdate
from redis_state.stores.sessions.session_log import EntryPage


async def read_updates(call: ApiCall) -> Response:
    """Read a page of a session's updates, the oldest first, from the archive and Redis.

    Its cursors are those of the stream of events. A page may be empty before the end.
    """
    query = call.query_as(UpdatesQuery)
    after = check_cursor(query.after)
    if after == TAIL:
        raise InvalidField("after", "must be a cursor, or 0 for all: the stream begins at the end")
    read = partial(_page, call, query)
    found = await updates_over_gap(read, None if after == ALL else after)
    document = {"rows": shown_rows(call, found.page.entries), "gap": _gap(found.gap)}
    return answer(document | {"cursor": found.page.cursor, "at_end": found.page.at_end})


async def _page(call: ApiCall, query: UpdatesQuery, after: str | None) -> EntryPage[StateUpdate]:
    return await updates_through(
        call.store, call.path["session"], after=after, limit=query.limit, task_id=query.task
    )


def _gap(gap: CursorGap | None) -> dict[str, Any] | None:
    if gap is None:
        return None
    return {"missed": gap.missed, "reason": gap.reason, "resume_after": gap.resume_after}


OPERATIONS = (
    Operation(
        "GET",
        "/v1/sessions/{session}/updates",
        read_updates,
        "Read the updates of a session",
        query=UpdatesQuery,
        result=UpdatesResult,
        answers=(400, 404),
    ),
)
