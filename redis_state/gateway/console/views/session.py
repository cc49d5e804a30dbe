"""Sessions: the list, and one with its tasks and its updates.

The page has the newest updates, and links to those before. Scripts add what comes then, live.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response

from redis_state.errors import CursorGap, InvalidField
from redis_state.gateway.answers import not_found
from redis_state.gateway.archived_updates import archived_updates
from redis_state.gateway.calls import authorise
from redis_state.gateway.console.operations import (
    LIST_SESSIONS,
    READ_SESSION,
    READ_TREES,
    STREAM_EVENTS,
)
from redis_state.gateway.console.pages import ConsolePage, PageCall
from redis_state.gateway.console.rendering import render
from redis_state.gateway.console.views.live import stream_part
from redis_state.gateway.console.views.trees import shortened
from redis_state.gateway.streaming.events import ALL, FrameWriter, check_cursor, position
from redis_state.gateway.streaming.reading import LiveEvent, read_events
from redis_state.models import StateUpdate, UpdateType
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.session_log import Entry

_PAGE = 100
_ROWS = 100
# A session may have as many as it has tasks.
_TREES = 200
_NUMBER = re.compile(r"[1-9][0-9]{0,14}")
# The template has links for both kinds of sessions, and a page those of its own kind.
_NO_PAGES = {"older": None, "newer": None, "is_newest": False, "later": None, "is_first": True}
_KINDS = [each.value for each in UpdateType]


async def show_sessions(call: PageCall) -> Response:
    """Show the sessions that have tasks, the newest first."""
    query = {"limit": _PAGE, **({"after": call.param("after")} if call.param("after") else {})}
    return call.page("sessions.html", found=await call.perform(LIST_SESSIONS, query=query))


async def show_session(call: PageCall) -> Response:
    """Show a session: its tasks as trees, and its updates as they come."""
    if "session" not in call.query:
        raise not_found()
    path = {"session": call.param("session")}
    counts, trees = await asyncio.gather(
        call.perform(READ_SESSION, path=path), call.perform(READ_TREES, path=path)
    )
    store: RedisStateStore = (await call.backstage.services()).store
    reads_archive = store.settings.has_archive
    oldest_first = reads_archive and (counts["archived"] or bool(call.param("after")))
    shown, left_out = shortened(trees["trees"][-_TREES:])
    return call.page(
        "session.html",
        session=path["session"],
        counts=counts["counts"],
        archived=counts["archived"],
        reads_archive=reads_archive,
        oldest_first=oldest_first,
        trees=shown,
        left_out=left_out,
        older_trees=max(0, len(trees["trees"]) - _TREES),
        incomplete=trees["incomplete"],
        kinds=_KINDS,
        types=_types(call),
        **await (_archived_rows if oldest_first else _rows)(call, path["session"]),
    )


async def stream_session(call: PageCall) -> Response:
    """Stream a session's updates as rows; what was dropped is a row too."""
    session_id = call.param("session")

    async def write(events: list[LiveEvent]) -> str:
        return "".join(_row(call, session_id, each) for each in events)

    types = _types(call)
    return await stream_part(call, {"types": types} if types else {}, write)


async def _rows(call: PageCall, session_id: str) -> dict[str, Any]:
    """Return a page of rows and gaps, and the numbers before which the pages beside it end."""
    authorise(STREAM_EVENTS, call.principal, {"session": session_id})
    services = await call.backstage.services()
    before = _before(call)
    found = await services.store.updates.before(session_id, before, limit=_ROWS)
    end = found.newest + 1 if before is None else min(before, found.newest + 1)
    numbers = [n for n, _ in found.entries]
    start = max(1, end - _ROWS)
    # Of the newest page: what came while it was read.
    first = numbers[0] if numbers else end
    gap = [_gap(first - start)] if first > start else []
    return {
        **_NO_PAGES,
        "rows": [*gap, *_visible(call, services, session_id, (each for _, each in found.entries))],
        "older": first if first > 1 and numbers and first == start else None,
        "newer": None if end > found.newest else end + _ROWS,
        "is_newest": end > found.newest,
        "tail": found.entries[-1][1].cursor if found.entries else "0",
    }


async def _archived_rows(call: PageCall, session_id: str) -> dict[str, Any]:
    """Return a page of rows and gaps of the archive and Redis, the oldest first.

    The archive reads on after a cursor alone. So ``later`` is where the next page begins.
    """
    authorise(STREAM_EVENTS, call.principal, {"session": session_id})
    services = await call.backstage.services()
    read = partial(archived_updates, services.store, session_id, limit=_ROWS)
    after, gaps = check_cursor(call.param("after") or None), list[dict[str, Any]]()
    after = None if after == ALL else after
    try:
        page = await read(after=after)
    except CursorGap as gap:
        gaps.append(_gap(gap.missed, gap.reason))
        page = await read(after=gap.resume_after)
    if after is None and (lost := await _lost_before(services.store, session_id, page.entries)):
        gaps.append(_gap(lost))
    return {
        **_NO_PAGES,
        "rows": [*gaps, *_visible(call, services, session_id, page.entries)],
        "later": None if page.at_end else page.cursor,
        "is_first": after is None,
    }


async def _lost_before(
    store: RedisStateStore, session_id: str, entries: Sequence[Entry[StateUpdate]]
) -> int:
    """Return how many rows were before the first that is kept, or before the end if none is."""
    if entries:
        return position(entries[0].cursor)[0] - 1
    reader = store.archive
    found = await reader.soon(partial(reader.session, session_id))
    # The number of its last row is kept when its rows have been removed.
    return 0 if found is None or found.last is None else found.last[0]


def _gap(missed: int | None, reason: str = "trimmed") -> dict[str, Any]:
    return {"gap": {"missed": missed, "reason": reason}}


def _visible(
    call: PageCall, services: Any, session_id: str, entries: Iterable[Entry[Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the rows that who looks may see, of the types of the page."""
    writer, types = FrameWriter(session_id), _types(call)
    for entry in entries:
        update: StateUpdate | None = entry.value
        if update is None or (types and update.update_type.value not in types):
            continue
        if services.visible is not None:
            update = services.visible(call.principal, update)
        if update is not None:
            (event,) = read_events(writer.row(entry.cursor, update))
            yield {"row": _shown(session_id, event)}


def _before(call: PageCall) -> int | None:
    text = call.param("before")
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise InvalidField("before", "must be the number of a row")
    return int(text)


def _row(call: PageCall, session_id: str, event: LiveEvent) -> str:
    values = {"base": call.base, "session": session_id}
    if event.name == "resync":
        return render("gap.html", **values, gap=event.data)
    if event.cursor is None:
        return ""
    return render("row.html", **values, row=_shown(session_id, event))


def _shown(session_id: str, event: LiveEvent) -> dict[str, Any]:
    data: dict[str, Any] = event.data
    return {
        "session_id": session_id,
        "task_id": data["task_id"],
        "type": data["update_type"],
        "content": data["content"],
        "at": data["created_at"],
    }


def _types(call: PageCall) -> list[str]:
    return [each for each in call.query.get("types", []) if each in _KINDS]


PAGES = (
    ConsolePage("GET", "/sessions", show_sessions),
    ConsolePage("GET", "/session", show_session),
    ConsolePage("GET", "/session/live", stream_session),
)
