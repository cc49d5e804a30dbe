"""The forwarder: moves events from the logs in Redis to PostgreSQL, in order, once per id.

    a trace has events     they are written; the log then lives for `events_ttl` after its last row
    PostgreSQL has them    likewise, and nothing is written
    the server lost rows   the whole log is written again: what is there is skipped
    PostgreSQL lost rows   what Redis still has is written again, within an hour
    PostgreSQL is away     the trace is postponed; its log lives for 400 days

Every step may be repeated, by any process: a batch is written only if the trace is where its reader
found it.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from redis_state.backoff import Backoff
from redis_state.errors import BackendError, CommandRefused, CursorGap
from redis_state.postgres.link import PostgresLink
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.pages import next_count
from redis_state.primitives.log.rows import Page
from redis_state.primitives.watchlist.watchlist import WatchClaim
from redis_state.scripts import ReplyCode
from redis_state.stores.base import Base, ms
from redis_state.stores.durable_events.table import EventTable, KeptPlace, TraceRows
from redis_state.stores.durable_events.waiting import HOLD_MS, EventList, trace_of_entry
from redis_state.transport.keys import WATCH_SHARDS

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

_LIMIT = 8
_AGAIN_MS, _TROUBLE_MS = 500, 3_600_000
_AWAY_MS = Backoff(1_000, 30_000)
# So many traces are read at once, and of each so many rows at first.
_TOGETHER, _FIRST = 16, 16


class _PostgresAwayError(Exception):
    """PostgreSQL failed a call, for ``cause``."""

    def __init__(self, cause: BackendError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class ForwardReport:
    """The result of one round: traces that were looked at, and what became of their events.

    ``missed`` rows had expired in Redis before they were written; ``postponed`` traces wait for
    PostgreSQL; ``refused`` traces it does not take. ``is_full``: more is likely to be due.
    """

    looked: int = 0
    events: int = 0
    missed: int = 0
    postponed: int = 0
    refused: int = 0
    is_full: bool = False


@dataclass(slots=True)
class _Turn:
    claims: dict[str, WatchClaim]
    report: ForwardReport
    settled: dict[str, int | None] = field(default_factory=dict[str, int | None])
    finished: dict[str, KeptPlace] = field(default_factory=dict[str, KeptPlace])


class Forwarder:
    """Move what is due on the list of traces. ``log_of`` gives a trace's log."""

    def __init__(
        self, base: Base, table: EventTable, link: PostgresLink, log_of: Callable[[str], Log]
    ) -> None:
        self._base = base
        self._table = table
        self._link = link
        self._log_of = log_of
        self._list = EventList(base)
        self._ttl_ms = ms(base.settings.events_ttl)
        # A trace is looked at this often: long before its events expire.
        self._check_ms = min(max(self._ttl_ms // 8, 1_000), 3_600_000)
        self._failures = 0

    async def run_once(self) -> ForwardReport:
        """Move what is due, once. Errors: BackendError of Redis.

        With PostgreSQL away it postpones, and keeps all.
        """
        report = ForwardReport()
        claims = await self._list.watch.claim_due(limit=_LIMIT, hold_ms=HOLD_MS)
        report.looked = len(claims)
        if not claims:
            return report
        shards = Counter(zlib.crc32(claim.entry) % WATCH_SHARDS for claim in claims)
        report.is_full = max(shards.values()) >= _LIMIT
        named = {trace_of_entry(claim.entry): claim for claim in claims}
        strange = named.pop(None, None)
        if strange is not None:
            await self._list.watch.settle([(strange, None)])
        turn = _Turn({trace: claim for trace, claim in named.items() if trace}, report)
        if "" in named:
            turn.claims[""] = named[""]
        try:
            traces = list(turn.claims)
            for start in range(0, len(traces), _TOGETHER):
                await self._move(traces[start : start + _TOGETHER], turn)
            self._failures = 0
        except _PostgresAwayError as away:
            if not self._failures:
                log.warning("%s; audit events stay in Redis", away)
            self._failures += 1
            for trace in turn.claims.keys() - turn.settled.keys():
                turn.settled[trace] = round(_AWAY_MS.after(self._failures))
                report.postponed += 1
        finally:
            await self._settle(turn)
        return report

    async def _settle(self, turn: _Turn) -> None:
        """Settle what was claimed. A trace that was saved to meanwhile waits again.

        If the save came before the strike, the strike has removed since when it waits.
        """
        traces = list(turn.settled)
        done = await asyncio.gather(
            *(
                self._list.watch.settle([(turn.claims[trace], turn.settled[trace])])
                for trace in traces
            )
        )
        again = [trace for trace, count in zip(traces, done, strict=True) if not count]
        await asyncio.gather(
            *(
                self._list.begin(trace, delay_ms=self._list.soon_ms)
                for trace in again
                if trace in turn.finished
            )
        )

    async def _move(self, traces: Sequence[str], turn: _Turn) -> None:
        places = dict(await self._ask(partial(self._table.places, traces)))
        left, count = list(traces), _FIRST
        while left:
            pages = await asyncio.gather(
                *(self._read(trace, places[trace], count, turn) for trace in left)
            )
            read = dict(zip(left, pages, strict=True))
            rows = {
                trace: TraceRows(
                    trace,
                    places[trace],
                    [row for row in page.rows if row.id],
                    (page.rows[-1].n, page.rows[-1].ms),
                )
                for trace, page in read.items()
                if page.rows
            }
            moved = await self._write(list(rows.values()), turn) if rows else set[str]()
            left = list[str]()
            for trace, page in read.items():
                if trace in rows:
                    if trace not in moved:
                        turn.settled.setdefault(trace, _AGAIN_MS)
                        continue
                    places[trace] = KeptPlace(*rows[trace].to, places[trace].clears)
                if page.at_end:
                    turn.finished[trace] = places[trace]
                else:
                    left.append(trace)
            count = next_count([len(row.data) for each in rows.values() for row in each.rows])
        finished = [trace for trace in traces if trace in turn.finished]
        await self._list.strike(turn.claims[trace].entry for trace in finished)
        looks = await asyncio.gather(*(self._release(each, turn) for each in finished))
        turn.settled.update(zip(finished, looks, strict=True))

    async def _read(self, trace: str, after: KeptPlace, count: int, turn: _Turn) -> Page:
        """Read what follows a place; the whole log if it has no such row."""
        of = self._log_of(trace)
        try:
            return await of.read(after=f"{after.n}-{after.ms}" if after.n else None, count=count)
        except CursorGap as gap:
            if gap.reason == "trimmed":
                turn.report.missed += gap.missed or 0
                log.warning("%s audit events have expired before PostgreSQL had them", gap.missed)
        return await of.read(count=count)

    async def _write(self, some: Sequence[TraceRows], turn: _Turn) -> set[str]:
        try:
            moved, new = await self._ask(partial(self._table.move, some), writes=True)
        except _PostgresAwayError as away:
            if not isinstance(away.cause, CommandRefused):
                raise
            if len(some) == 1:
                log.error("audit events of a trace cannot be moved: %s", away)  # noqa: TRY400 - the text says all
                turn.report.refused += 1
                turn.settled[some[0].trace_id] = _TROUBLE_MS
                return set()
            return set[str]().union(*[await self._write([each], turn) for each in some])
        turn.report.events += new
        return moved

    async def _release(self, trace: str, turn: _Turn) -> int | None:
        """Release the log of a trace; return when to inspect it again, None without one."""
        place, of = turn.finished[trace], self._log_of(trace)
        more = place.n > 0
        while more:
            reply = await self._base.scripts.release_rows(
                of.keys, n=place.n, at_ms=place.ms, ttl_ms=self._ttl_ms
            )
            if reply.word is not ReplyCode.OK:
                break
            more = bool(reply.facts[0])
        there = await self._base.scripts.transport.commands.exists(of.keys.rows)
        return self._check_ms if there else None

    async def _ask(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> T:
        try:
            return await self._link.run(work, writes=writes)
        except BackendError as error:
            raise _PostgresAwayError(error) from None
