"""The overview: the pool, queues, open pauses by age, failures in the last hours."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from starlette.responses import Response

from redis_state.gateway.console.operations import (
    FIND_TASKS,
    LIST_PAUSES,
    LIST_QUEUES,
    LIST_WORKERS,
)
from redis_state.gateway.console.pages import ConsolePage, PageCall
from redis_state.gateway.console.rendering import moment, read_time

_HOURS = 24
_MOST = 1_000
_AGES = ((60, "under a minute"), (3_600, "under an hour"), (86_400, "under a day"))
_OLDER = "a day and more"


async def show_overview(call: PageCall) -> Response:
    """Show the overview."""
    shared, read = call.backstage.overviews, partial(read_overview, call)
    return call.page("overview.html", **await shared.renew(await _who_sees_it(call), read))


async def show_overview_part(call: PageCall) -> Response:
    """Show the part of the overview that changes, for a page that has the rest."""
    shared, read = call.backstage.overviews, partial(read_overview, call)
    return call.page("overview_part.html", **await shared.get(await _who_sees_it(call), read))


async def _who_sees_it(call: PageCall) -> Hashable:
    """Return what those have in common who see the same overview: their scopes.

    A host's filter may show each of them something else.
    """
    services = await call.backstage.services()
    return call.principal.scopes if services.visible is None else call.principal


async def read_overview(call: PageCall) -> dict[str, Any]:
    """Read what the overview shows. What who looks may not see is None."""
    now = datetime.now(UTC)
    # Of any age: a task that waited for days may fail now.
    failed = {"status": ["FAILED"], "limit": _MOST}
    workers, queues, pauses, failures = await asyncio.gather(
        call.section(LIST_WORKERS),
        call.section(LIST_QUEUES),
        call.section(LIST_PAUSES, query={"limit": _MOST}),
        call.section(FIND_TASKS, query=failed),
    )
    failed_last = [] if failures is None else _newest_first(failures["tasks"])
    by_hour = None if failures is None else _by_hour(failed_last, now)
    return {
        "workers": None if workers is None else workers["workers"],
        "queues": None if queues is None else queues["queues"],
        "pauses": None if pauses is None else _by_age(pauses["pauses"], now),
        "oldest": [] if pauses is None else pauses["pauses"][:5],
        "more_pauses": pauses is not None and pauses["cursor"] is not None,
        "failures": by_hour,
        "failed": failed_last[:5],
        "failed_count": sum(each["count"] for each in by_hour or ()),
        "more_failures": failures is not None and failures["cursor"] is not None,
        "hours": _HOURS,
    }


def _by_age(pauses: list[dict[str, Any]], now: datetime) -> list[tuple[str, int]]:
    counts = dict.fromkeys([*(label for _, label in _AGES), _OLDER], 0)
    for pause in pauses:
        opened = moment(pause["opened_at"]) or now
        seconds = (now - opened) / timedelta(seconds=1)
        counts[next((label for most, label in _AGES if seconds < most), _OLDER)] += 1
    return list(counts.items())


def _newest_first(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(tasks, key=lambda task: read_time(task["updated_at"]), reverse=True)


def _by_hour(tasks: list[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Count the failures of each of the last hours, the oldest first."""
    counts = [0] * _HOURS
    for task in tasks:
        ended = moment(task["updated_at"]) or now
        hours = int((now - ended) / timedelta(hours=1))
        if 0 <= hours < _HOURS:
            counts[hours] += 1
    most = max(1, *counts)
    return [
        {"ago": ago, "count": counts[ago], "height": round(60 * counts[ago] / most, 1)}
        for ago in reversed(range(_HOURS))
    ]


PAGES = (
    ConsolePage("GET", "", show_overview),
    ConsolePage("GET", "/overview-part", show_overview_part),
)
