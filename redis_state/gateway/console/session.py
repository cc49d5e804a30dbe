"""Sessions: the list, and one with its tasks and a live tail of its updates."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from redis_state.gateway.answers import not_found
from redis_state.gateway.console.live import stream_part
from redis_state.gateway.console.operations import LIST_SESSIONS, READ_SESSION, READ_TREES
from redis_state.gateway.console.pages import ConsolePage, PageCall
from redis_state.gateway.console.rendering import render
from redis_state.gateway.streaming.reading import LiveEvent
from redis_state.models import UpdateType

_PAGE = 100
_KINDS = [each.value for each in UpdateType]


async def show_sessions(call: PageCall) -> Response:
    """Show the sessions that have tasks, the newest first."""
    query = {"limit": _PAGE, **({"after": call.asked("after")} if call.asked("after") else {})}
    return call.page("sessions.html", found=await call.perform(LIST_SESSIONS, query=query))


async def show_session(call: PageCall) -> Response:
    """Show a session: its tasks as trees, and its updates as they come."""
    if "session" not in call.query:
        raise not_found()
    path = {"session": call.asked("session")}
    counts, trees = await asyncio.gather(
        call.perform(READ_SESSION, path=path), call.perform(READ_TREES, path=path)
    )
    types = _types(call)
    return call.page(
        "session.html",
        session=path["session"],
        counts=counts["counts"],
        trees=trees["trees"],
        kinds=_KINDS,
        types=types,
        # A filter begins again with all that is kept.
        tail="0",
    )


async def stream_session(call: PageCall) -> Response:
    """Stream a session's updates as rows; what was dropped is a row too."""
    session_id = call.asked("session")

    async def write(events: list[LiveEvent]) -> str:
        return "".join(_row(call, session_id, each) for each in events)

    types = _types(call)
    return await stream_part(call, {"types": types} if types else {}, write)


def _row(call: PageCall, session_id: str, event: LiveEvent) -> str:
    values = {"base": call.base, "session": session_id}
    if event.name == "resync":
        return render("gap.html", **values, gap=event.data)
    if event.cursor is None:
        return ""
    data: dict[str, Any] = event.data
    row = {
        "session_id": session_id,
        "task_id": data["task_id"],
        "type": data["update_type"],
        "content": data["content"],
        "at": data["created_at"],
    }
    return render("row.html", **values, row=row)


def _types(call: PageCall) -> list[str]:
    return [each for each in call.query.get("types", []) if each in _KINDS]


PAGES = (
    ConsolePage("GET", "/sessions", show_sessions),
    ConsolePage("GET", "/session", show_session),
    ConsolePage("GET", "/session/live", stream_session),
)
