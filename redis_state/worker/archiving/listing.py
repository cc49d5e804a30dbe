"""What a sweeper puts on the archive's lists.

    a task has ended      it is put on the tasks' list before it leaves the watch list
    a task has not ended  its session is put on the sessions' list, if it has updates

Once a session is on its list, the archiver looks at it until its updates have expired. So the
updates of a task that runs or waits for longer than they live are archived before.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic

from redis_state.archive.copying.updates import log_of
from redis_state.archive.waiting import ArchiveList
from redis_state.errors import CorruptState
from redis_state.primitives.watchlist.watchlist import Fate, WatchClaim
from redis_state.store import RedisStateStore
from redis_state.stores.archive_list import many_updates, session_check_ms
from redis_state.stores.sessions.task_status import TaskStatusView

_SOON_MS = 1_000
# Of so many sessions it is known what was listed. Those that are not are listed once more, and then
# not to be looked at soon: as often as a sweeper sees a task of theirs, an archiver would look.
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class _ListedSession:
    """When a session was listed, and the last row of the updates that will be archived soon."""

    at_s: float
    n: int


class ArchiveEntries:
    """Put tasks that have ended, and the sessions of others, on the lists of a store."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._list = ArchiveList(store)
        self._every_s = session_check_ms(store.settings) / 1000
        self._many = many_updates(store.settings)
        self._sessions: OrderedDict[str, _ListedSession] = OrderedDict()

    async def settle(self, claim: WatchClaim, fate: int | Fate, view: TaskStatusView) -> None:
        """List what a sweeper has found of a task. A host's task, without a worker, is not."""
        if not view.ours:
            return
        if fate is not Fate.OUT:
            await self._list_session(view.session_id)
        elif claim.again:
            await self._list.enlist(view.session_id, view.task_id)

    async def _list_session(self, session_id: str) -> None:
        """List a session: soon if it is new, or many of its updates are; else now and then.

        A look of the archiver that is due before stands.
        """
        n, now_s, was = (
            await self._last_row(session_id),
            monotonic(),
            self._sessions.get(session_id),
        )
        if not n:
            return
        # Of many sessions one that is not known may be one that is forgotten.
        new = was is None and len(self._sessions) < _MOST
        listed = 0 if was is None else was.n
        soon = new or n < listed or n - listed >= self._many
        if not soon and was is not None and now_s - was.at_s < self._every_s:
            return
        await self._list.watch_session(
            session_id, within_ms=_SOON_MS if soon else round(self._every_s * 1000)
        )
        self._sessions[session_id] = _ListedSession(now_s, n if soon else listed)
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > _MOST:
            self._sessions.popitem(last=False)

    async def _last_row(self, session_id: str) -> int:
        """Return the number of a session's last update; 0 if it has none, or they have expired."""
        updates = log_of(self._store, session_id)
        try:
            place = updates.place_of(await updates.end())
        except CorruptState:
            # The archiver will say so once a task of the session has ended.
            return 0
        return 0 if place is None else place[0]
