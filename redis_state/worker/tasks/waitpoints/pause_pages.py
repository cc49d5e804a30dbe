"""Pages of the list of open pauses, the first opened first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis_state.errors import InvalidField
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.views.cursors import read_cursor, write_cursor
from redis_state.worker.tasks.waitpoints.open_pauses import OpenPause, PauseReading, PlacedPause
from redis_state.worker.tasks.waitpoints.pause_list import PauseList, PausePlace

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

    Of all: it costs the page, and those that are left out, however many are open. Then it may be
    short. Of sessions: all their open pauses are read. Errors: InvalidField.
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
    looked_at, more = 0, True
    while more:
        if sessions is None:
            listed, more = await PauseList(store).after(after, limit + 1)
            pauses = await PauseReading(store, None).all_of(listed)
        else:
            pauses, more = await _pauses_of(store, sessions, after), False
        looked_at += limit + 1
        for place, pause in pauses:
            if pause is not None and opened_until is not None and pause.opened_at > opened_until:
                return found, None
            if pause is not None and wanted(pause):
                if len(found) == limit:
                    return found, after
                found.append(pause)
            after = place
        if more and looked_at >= _MOST_READ:
            return found, after
    return found, None


async def _pauses_of(
    store: RedisStateStore, sessions: Sequence[str], after: PausePlace | None
) -> list[PlacedPause]:
    found = [
        each
        for session_id in dict.fromkeys(sessions)
        async for each in PauseReading(store, session_id).read()
        if after is None or each.place > after
    ]
    return sorted(found, key=lambda each: each.place)
