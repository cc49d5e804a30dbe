"""Pages of the list of open pauses, the first opened first."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis_state.errors import InvalidField
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor
from redis_state.worker.tasks.waitpoints.open_pauses import OpenPause, PauseReading, PlacedPause
from redis_state.worker.tasks.waitpoints.pause_list import ListedPause, PauseList, PausePlace

LARGEST_PAGE = 1_000
# So many pauses are looked at for a page, if few of them are to be listed.
_MOST_READ = 1_000
_MS_BYTES = 7
_PLACE_BYTES = 15


@dataclass(frozen=True, slots=True)
class PausePage:
    """A page of open pauses. ``cursor`` continues behind it; it is None at the end.

    A page may have fewer pauses than the limit, or none, and still a cursor.
    """

    pauses: Sequence[OpenPause]
    cursor: str | None


async def list_pause_page(
    store: RedisStateStore,
    sessions: Sequence[str] | None,
    *,
    listing: Any,
    limit: int,
    after: str | None,
    wanted: Callable[[OpenPause], bool],
    opened_until: datetime | None = None,
) -> PausePage:
    """Return a page of the open pauses of sessions, or of all. A cursor is of one ``listing``.

    It costs the page, and those that are left out, however many are open: then it may be short. Of
    sessions it also reads when each of their open pauses was opened. Errors: InvalidField.
    """
    if limit > LARGEST_PAGE:
        raise InvalidField("limit", f"must be at most {LARGEST_PAGE}")
    place: PausePlace | None = None
    if after is not None:
        written = read_cursor(listing, after, length=_PLACE_BYTES)
        place = PausePlace(int.from_bytes(written[:_MS_BYTES]), written[_MS_BYTES:])
    found, end = await _page(
        store, sessions, limit=limit, after=place, wanted=wanted, opened_until=opened_until
    )
    if end is None:
        return PausePage(found, None)
    return PausePage(found, write_cursor(listing, end.opened_ms.to_bytes(_MS_BYTES) + end.mark))


async def _page(
    store: RedisStateStore,
    sessions: Sequence[str] | None,
    *,
    limit: int,
    after: PausePlace | None,
    wanted: Callable[[OpenPause], bool],
    opened_until: datetime | None,
) -> tuple[list[OpenPause], PausePlace | None]:
    found: list[OpenPause] = []
    looked_at = 0
    parts = (
        _of_all(store, after, limit + 1)
        if sessions is None
        else _of_sessions(store, sessions, after, limit + 1)
    )
    async with aclosing(parts):
        async for pauses, more in parts:
            looked_at += limit + 1
            for place, pause in pauses:
                if pause is not None:
                    if opened_until is not None and pause.opened_at > opened_until:
                        return found, None
                    if wanted(pause):
                        if len(found) == limit:
                            return found, after
                        found.append(pause)
                after = place
            if more and looked_at >= _MOST_READ:
                return found, after
    return found, None


async def _of_all(
    store: RedisStateStore, after: PausePlace | None, size: int
) -> AsyncGenerator[tuple[list[PlacedPause], bool], None]:
    """Yield what is listed behind a place, in order, some at a time; and whether more follow."""
    more = True
    while more:
        listed, more = await PauseList(store).after(after, size)
        yield await PauseReading(store, None).all_of(listed), more
        after = listed[-1].place if listed else after


async def _of_sessions(
    store: RedisStateStore, sessions: Sequence[str], after: PausePlace | None, size: int
) -> AsyncGenerator[tuple[list[PlacedPause], bool], None]:
    """Yield the same of sessions, whose lists are in no order: first the places of all are read."""
    named = list(dict.fromkeys(sessions))
    places = await asyncio.gather(*(PauseReading(store, each).places() for each in named))
    behind = sorted(
        (each, session_id)
        for session_id, its in zip(named, places, strict=True)
        for each in its
        if after is None or each.place > after
    )
    for start in range(0, len(behind), size):
        by_session: defaultdict[str, list[ListedPause]] = defaultdict(list)
        for each, session_id in behind[start : start + size]:
            by_session[session_id].append(each)
        read = await asyncio.gather(
            *(PauseReading(store, session_id).all_of(its) for session_id, its in by_session.items())
        )
        pauses = sorted((each for some in read for each in some), key=lambda each: each.place)
        yield pauses, start + size < len(behind)
