"""How the updates of a session come to be archived that no sweeper lists: by who saves in it.

    an update is saved    its session is put on the archive's list in the same write, unless this
                          process did so a while ago. It stays there until its log has expired
    a log begins again    the session is listed again: an erasure has removed its entry
    updates are many      the archiver is to look soon: the oldest may be lost

An entry is queued before its save. So a process that dies leaves both, or an entry without a log,
which the archiver removes. One that dies behind the first row of a log that began again leaves a
log that the next process to save lists. Nothing is written without an archive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TypeVar

from redis_state.futures import unawaited
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.log.rows import Appended
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.stores.archive_list import many_updates, session_check_ms, session_entry
from redis_state.stores.base import Base

T = TypeVar("T")

_SOON_MS = 1_000
# Of so many sessions something is known. Others are listed once more.
_MOST = 10_000
# So many processes may patch one session at once before the oldest of its updates may be lost.
_PROCESSES = 4


@dataclass(slots=True)
class _Known:
    """What a process knows of a session's log: when it listed the session, and how far the log is.

    ``unnumbered`` counts updates whose numbers are not known, since the archiver was last to look
    soon.
    """

    listed_ms: float = -inf
    n: int = 0
    unnumbered: int = 0


class ListedSessions:
    """Lists the sessions of what one process saves. Only with an archive."""

    def __init__(self, base: Base) -> None:
        self._transport = base.scripts.transport
        self._watch = WatchList(base.scripts, base.keys, key_of=base.keys.archive_sessions)
        self._check_ms = session_check_ms(base.settings)
        self._many = many_updates(base.settings)
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def covering(
        self, session_id: str, save: Callable[[], Awaitable[T]], *, delay_ms: int | None = None
    ) -> T:
        """List a session and make a save, in one write."""
        sender, entry = self._transport.sender, session_entry(session_id)
        connections, due_ms = sender.connections, delay_ms or self._check_ms
        listed = self._watch.begin_bring_forward(entry, delay_ms=due_ms)
        # The save may fail first; then nobody awaits this.
        unawaited(listed)
        saved = await save()
        with behind_a_write(self._transport.address):
            await listed
            if sender.connections != connections:
                # The server may have come back without the entry.
                await self._watch.bring_forward(entry, delay_ms=due_ms)
        return saved

    async def now_and_then(self, session_id: str, save: Callable[[], Awaitable[T]]) -> T:
        """Make a save, and list its session unless that was done a while ago."""
        known = self._about(session_id)
        if self._is_listed(known):
            return await save()
        saved = await self.covering(session_id, save)
        known.listed_ms = monotonic() * 1000
        return saved

    async def patching(self, session_id: str, save: Callable[[], Awaitable[T]]) -> T:
        """Make a save that appends an update of its own, and list its session.

        Its row's number is not known, and other processes save too: so a part of what is many for
        a log is many for one process.
        """
        known = self._about(session_id)
        known.unnumbered += 1
        many = known.unnumbered * _PROCESSES >= self._many
        saved = await self.covering(session_id, save, delay_ms=_SOON_MS if many else None)
        if many:
            known.unnumbered = 0
        return saved

    async def appending(self, session_id: str, append: Callable[[], Awaitable[Appended]]) -> bool:
        """Append an update, and return whether it was new.

        Its log outlives the time for which its session is known as listed. So does the entry. A
        repeated call lists the session as the first one does, which may have failed behind its row.
        """
        known = self._about(session_id)
        was_listed = self._is_listed(known)
        appended = await self.now_and_then(session_id, append)
        (n,) = appended.numbers
        # A number between may be of a patch.
        many = n % self._many == 0 or (known.n > 0 and known.n // self._many < n // self._many)
        known.n = n
        if many or (n == 1 and was_listed):
            delay_ms = _SOON_MS if many else self._check_ms
            # Whatever ends this call, the next one of this process lists it.
            listed_ms, known.listed_ms = known.listed_ms, -inf
            with behind_a_write(self._transport.address):
                await self._watch.bring_forward(session_entry(session_id), delay_ms=delay_ms)
            known.listed_ms = listed_ms
        return bool(appended.new)

    def _about(self, session_id: str) -> _Known:
        # The last one that was saved in stands at the end.
        known = self._known.pop(session_id, None) or _Known()
        self._known[session_id] = known
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return known

    def _is_listed(self, known: _Known) -> bool:
        return monotonic() * 1000 - known.listed_ms < self._check_ms
