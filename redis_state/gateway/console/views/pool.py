"""The pool: workers, queues with their limits, schedules."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from redis_state.gateway.auth.principal import Right
from redis_state.gateway.console.operations import (
    LIST_QUEUES,
    LIST_RATES,
    LIST_SCHEDULES,
    LIST_WORKERS,
    PAUSE_QUEUE,
    PAUSE_SCHEDULE,
    RESUME_QUEUE,
    RESUME_SCHEDULE,
    TRIGGER_SCHEDULE,
)
from redis_state.gateway.console.pages import ConsolePage, PageCall

_PAGE = 100


async def show_workers(call: PageCall) -> Response:
    """Show the live worker processes."""
    return call.page("workers.html", **await call.perform(LIST_WORKERS, query=_page_of(call)))


async def show_queues(call: PageCall) -> Response:
    """Show the queues and their limits, and the rates."""
    queues, rates = await asyncio.gather(call.perform(LIST_QUEUES), call.perform(LIST_RATES))
    return call.page(
        "queues.html",
        **queues,
        rates=_rates(rates),
        may=call.principal.everywhere(Right.ADMIN),
    )


def _rates(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each rate with what was set, and how it is used now; None for what is not so."""
    listed = {each["name"]: each for each in found["rates"]}
    used = {each["name"]: each for each in found["in_use"]}
    return [
        {"name": name, "set": listed.get(name), "use": used.get(name)}
        for name in sorted({*listed, *used})
    ]


async def pause_queue(call: PageCall) -> Response:
    """Begin no more tasks of a queue."""
    await call.perform(PAUSE_QUEUE, path={"queue": call.param("queue")})
    return call.go("/queues", said="paused")


async def resume_queue(call: PageCall) -> Response:
    """Begin tasks of a queue again."""
    await call.perform(RESUME_QUEUE, path={"queue": call.param("queue")})
    return call.go("/queues", said="resumed")


async def show_schedules(call: PageCall) -> Response:
    """Show the schedules."""
    found: dict[str, Any] = await call.perform(LIST_SCHEDULES, query=_page_of(call))
    caller = call.principal
    return call.page(
        "schedules.html",
        **found,
        here=_here(call),
        may=caller.everywhere(Right.ADMIN),
        may_submit=caller.everywhere(Right.SUBMIT),
    )


def _page_of(call: PageCall) -> dict[str, Any]:
    return {"limit": _PAGE, **_here(call)}


def _here(call: PageCall) -> dict[str, str]:
    """Return the page of a list that the browser is on."""
    after = call.param("after")
    return {"after": after} if after else {}


async def pause_schedule(call: PageCall) -> Response:
    """Pause a schedule."""
    await call.perform(PAUSE_SCHEDULE, path={"schedule": call.param("schedule")})
    return call.go("/schedules", **_here(call), said="paused")


async def resume_schedule(call: PageCall) -> Response:
    """Resume a schedule."""
    await call.perform(RESUME_SCHEDULE, path={"schedule": call.param("schedule")})
    return call.go("/schedules", **_here(call), said="resumed")


async def trigger_schedule(call: PageCall) -> Response:
    """Submit a task of a schedule now."""
    key = call.given("form_key")
    usable = 0 < len(key) <= 100 and key.isascii() and key.isprintable()  # noqa: PLR2004
    made = await call.perform(
        TRIGGER_SCHEDULE,
        path={"schedule": call.param("schedule")},
        key=key if usable else None,
    )
    return call.go("/task", session=made["session_id"], task=made["task_id"], said="triggered")


PAGES = (
    ConsolePage("GET", "/workers", show_workers),
    ConsolePage("GET", "/queues", show_queues),
    ConsolePage("POST", "/queues/pause", pause_queue, shown=show_queues),
    ConsolePage("POST", "/queues/resume", resume_queue, shown=show_queues),
    ConsolePage("GET", "/schedules", show_schedules),
    ConsolePage("POST", "/schedules/pause", pause_schedule, shown=show_schedules),
    ConsolePage("POST", "/schedules/resume", resume_schedule, shown=show_schedules),
    ConsolePage("POST", "/schedules/trigger", trigger_schedule, shown=show_schedules),
)
