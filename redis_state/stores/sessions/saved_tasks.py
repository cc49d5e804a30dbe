"""How a task that a host saves comes to be archived. A worker's own is listed by its sweeper.

    a save ends the task   its entry is put on the archive's list first, and it is held right behind
    it does not            its session is listed now and then: its updates may expire before

The entry finds the task whatever dies. A session is listed again by each process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TypeVar

from redis_state.primitives.watchlist import WatchList
from redis_state.scripts import TaskKeys
from redis_state.stores.archive_list import SavedTaskList, session_check_ms, session_entry
from redis_state.stores.base import ARCHIVE_HOLD_MS, Base
from redis_state.stores.sessions.task_status import watch_entry

T = TypeVar("T")

# Of so many sessions it is known when they were listed. Others are listed once more.
_MOST = 10_000


class SavedTasks:
    """Saves tasks of hosts, and has the archive find them. Only with an archive."""

    def __init__(self, base: Base) -> None:
        self._scripts, self._keys = base.scripts, base.keys
        self._tasks = SavedTaskList(base)
        self._sessions = WatchList(base.scripts, base.keys, key_of=base.keys.archive_sessions)
        self._check_ms = session_check_ms(base.settings)
        self._listed: OrderedDict[str, float] = OrderedDict()

    async def save_ended(
        self, session_id: str, keys: TaskKeys, save: Callable[[], Awaitable[T]]
    ) -> T:
        """Make a save that ends a task, and hold the task and the updates of its session.

        All three travel together. A crash leaves nothing to archive, or an entry that finds it.
        """

        async def hold_task() -> None:
            await self._scripts.read_ended(
                keys, least_ms=ARCHIVE_HOLD_MS // 2, hold_ms=ARCHIVE_HOLD_MS, whole=False
            )

        async def hold_updates() -> None:
            await self._scripts.keep_rows(
                self._keys.updates(session_id),
                least_ms=ARCHIVE_HOLD_MS // 2,
                n=0,
                hold_ms=ARCHIVE_HOLD_MS,
            )

        async def saved_and_held() -> T:
            # Calls are made in this order, and take effect in it.
            saved, *_ = await asyncio.gather(_awaited(save), hold_task(), hold_updates())
            return saved

        return await self._tasks.covering(watch_entry(session_id, keys.task_id), saved_and_held)

    async def save_unfinished(self, session_id: str, save: Callable[[], Awaitable[T]]) -> T:
        """Make a save that ends no task, and list its session unless that was done a while ago."""
        now_ms, was_ms = monotonic() * 1000, self._listed.get(session_id)
        if was_ms is not None and now_ms - was_ms < self._check_ms:
            return await save()
        entry = session_entry(session_id)
        saved, _ = await asyncio.gather(
            _awaited(save), self._sessions.bring_forward(entry, delay_ms=self._check_ms)
        )
        self._listed[session_id] = now_ms
        self._listed.move_to_end(session_id)
        if len(self._listed) > _MOST:
            self._listed.popitem(last=False)
        return saved


async def _awaited(save: Callable[[], Awaitable[T]]) -> T:
    return await save()
