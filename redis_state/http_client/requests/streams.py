"""The updates of a session over HTTP, once each and in order, however often the connection breaks.

The cursor is that of the last event that came whole. Each connection reads on after it. So a row is
neither skipped nor given twice: the gateway finds its place in the log, or says what is missing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any

from redis_state import limits
from redis_state.errors import BackendUnavailable, CommandRefused, TaskUnknown
from redis_state.http_client.requests.caller import Ask, GatewayCaller
from redis_state.http_client.requests.problems import gap_of
from redis_state.http_client.requests.server_events import EventReader, ServerEvent
from redis_state.models import StateUpdate, UpdateType
from redis_state.serialization import codec
from redis_state.stores.sessions.session_log import Entry

_SOONEST_S, _LATEST_S = 0.1, 2.0
_LONGEST_RETRY_S = 10.0
# A connection that ended sooner, and brought no event, was of no use.
_SHORTEST_S = 1.0


class UpdateStreams:
    """Follow the updates of sessions."""

    def __init__(self, caller: GatewayCaller) -> None:
        self._caller = caller

    async def updates(
        self,
        session_id: str,
        *,
        task_id: str | None,
        after: str | None,
        types: Collection[UpdateType | str] | None,
        reconnect_timeout_s: float,
    ) -> AsyncGenerator[Entry[StateUpdate], None]:
        """Yield updates until the task, if one is wanted, is terminal. Errors: CursorGap."""
        cursor = after
        events = self.events(
            session_id,
            task_id=task_id,
            after=after,
            types=types,
            reconnect_timeout_s=reconnect_timeout_s,
        )
        async with aclosing(events):
            async for event in events:
                if event.name == "resync":
                    raise gap_of(_facts(event), cursor=cursor or "0")
                if event.name == "end":
                    if _facts(event).get("status") is None:
                        raise TaskUnknown(task_id or "")
                    return
                cursor = event.cursor
                yield _entry(event)

    async def events(
        self,
        session_id: str,
        *,
        task_id: str | None,
        after: str | None,
        types: Collection[UpdateType | str] | None,
        reconnect_timeout_s: float,
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield events up to ``end``, over as many connections as that takes.

        Errors: BackendUnavailable once nothing has come for ``reconnect_timeout_s`` of trouble. It
        is trouble, too, if connections are taken and end at once.
        """
        ask = _ask(session_id, task_id, after, types)
        patience_s = limits.patience("reconnect_timeout_s", reconnect_timeout_s)
        cursor, tries = after, _Tries(self._caller.address, patience_s)
        while True:
            trouble: BackendUnavailable | None = None
            try:
                async with self._caller.stream(ask, cursor=cursor) as chunks:
                    tries.begin()
                    reader = EventReader(cursor)
                    async for chunk in chunks:
                        for event in _read(reader, chunk):
                            cursor = event.cursor
                            if event.name != "expired":
                                tries.heard = True
                                yield event
                            if event.name == "end":
                                return
                        cursor = reader.cursor
                        if reader.retry_ms is not None:
                            tries.retry_s = min(reader.retry_ms / 1000, _LONGEST_RETRY_S)
            except BackendUnavailable as error:
                trouble = error
            await asyncio.sleep(tries.wait_s(trouble))


class _Tries:
    """One connection after the other: since when they are of no use, and when the next one is."""

    def __init__(self, address: str, patience_s: float) -> None:
        self.heard: bool = False
        self.retry_s: float = _SOONEST_S
        self._time = asyncio.get_running_loop().time
        self._address = address
        self._patience_s = patience_s
        self._opened_at = math.inf
        self._failing_since: float | None = None
        self._backoff_s = 0.0

    def begin(self) -> None:
        """Note that a connection is open."""
        self._opened_at = self._time()

    def wait_s(self, trouble: BackendUnavailable | None) -> float:
        """Return when to connect again after one. Errors: its trouble, after too much of it."""
        now = self._time()
        if self.heard or now - self._opened_at >= _SHORTEST_S:
            self._failing_since = None
        elif trouble is None:
            trouble = BackendUnavailable(self._address, "the stream ended at once")
        self.heard, self._opened_at = False, math.inf
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        if trouble is None:
            self._backoff_s = 0.0
        elif trouble.final or now - since >= self._patience_s:
            raise trouble
        wait_s = max(self.retry_s, self._backoff_s)
        if trouble is not None:
            self._backoff_s = min(max(wait_s, _SOONEST_S) * 2, _LATEST_S)
        return wait_s


def _ask(
    session_id: str,
    task_id: str | None,
    after: str | None,
    types: Collection[UpdateType | str] | None,
) -> Ask:
    query = [] if task_id is None else [("task", task_id)]
    if after is not None:
        query.append(("after", after))
    query += [
        ("types", kind.value if isinstance(kind, UpdateType) else kind)
        for kind in (() if types is None else types)
    ]
    return Ask(
        "GET", ("sessions", session_id, "events"), query, missing=lambda: TaskUnknown(task_id or "")
    )


def _read(reader: EventReader, chunk: bytes) -> list[ServerEvent]:
    try:
        return reader.feed(chunk)
    except ValueError:
        raise CommandRefused("the stream is no gateway's") from None


def _facts(event: ServerEvent) -> Any:
    try:
        return codec.decode(event.data)
    except codec.DecodeError:
        raise CommandRefused(f"the stream is no gateway's: event {event.name[:40]}") from None


def _entry(event: ServerEvent) -> Entry[StateUpdate]:
    document = _facts(event)
    run = document.pop("run", None)
    update = StateUpdate.model_validate(document)
    return Entry[StateUpdate].reported(event.cursor or "", update, run)
