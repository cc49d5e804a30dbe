"""How the updates of a session come to be archived that no sweeper lists: by who saves in it.

    an update is saved    its session is put on the archive's list in the same write, unless this
                          process did so a while ago. It stays there until its log has expired
    a log begins again    the session is listed again: an erasure has removed its entry
    updates are many      the archiver is to look soon: the oldest may be lost

An entry is queued before its save. So a process that dies leaves both, or an entry without a log,
which the archiver removes. Nothing is written without an archive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from redis_state.futures import unawaited
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.log import Appended
from redis_state.primitives.watchlist import WatchList
from redis_state.stores.archive_list import many_updates, session_check_ms, session_entry
from redis_state.stores.base import Base

T = TypeVar("T")

_SOON_MS = 1_000
# Of so many sessions it is known when they were listed. Others are listed once more.
_MOST = 10_000


class ListedSessions:
    """Lists the sessions of what one process saves. Only with an archive."""

    def __init__(self, base: Base) -> None:
        self._transport = base.scripts.transport
        self._watch = WatchList(base.scripts, base.keys, key_of=base.keys.archive_sessions)
        self._check_ms = session_check_ms(base.settings)
        self._many = many_updates(base.settings)
        self._listed: OrderedDict[str, float] = OrderedDict()

    async def covering(self, session_id: str, save: Callable[[], Awaitable[T]]) -> T:
        """List a session and make a save, in one write."""
        sender, entry = self._transport.sender, session_entry(session_id)
        connections = sender.connections
        listed = self._watch.begin_bring_forward(entry, delay_ms=self._check_ms)
        # The save may fail first; then nobody awaits this.
        unawaited(listed)
        saved = await save()
        with behind_a_write(self._transport.address):
            await listed
            if sender.connections != connections:
                # The server may have come back without the entry.
                await self._watch.bring_forward(entry, delay_ms=self._check_ms)
        return saved

    async def now_and_then(self, session_id: str, save: Callable[[], Awaitable[T]]) -> T:
        """Make a save, and list its session unless that was done a while ago."""
        if self._is_known(session_id):
            return await save()
        saved = await self.covering(session_id, save)
        # The last one that was listed stands at the end.
        self._listed.pop(session_id, None)
        self._listed[session_id] = monotonic() * 1000
        if len(self._listed) > _MOST:
            self._listed.popitem(last=False)
        return saved

    async def appending(self, session_id: str, append: Callable[[], Awaitable[Appended]]) -> bool:
        """Append an update, and return whether it was new.

        Its log outlives the time for which its session is known as listed. So does the entry.
        """
        was_known = self._is_known(session_id)
        appended = await self.now_and_then(session_id, append)
        (n,) = appended.numbers
        many = n % self._many == 0
        if appended.new and (many or (n == 1 and was_known)):
            delay_ms = _SOON_MS if many else self._check_ms
            with behind_a_write(self._transport.address):
                await self._watch.bring_forward(session_entry(session_id), delay_ms=delay_ms)
        return bool(appended.new)

    def _is_known(self, session_id: str) -> bool:
        was_ms = self._listed.get(session_id)
        return was_ms is not None and monotonic() * 1000 - was_ms < self._check_ms
