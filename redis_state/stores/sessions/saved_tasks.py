"""How a task that a host saves comes to be archived. A worker's own is listed by its sweeper.

    a save ends the task   its entry is put on the archive's list first, and it is held right behind
    it does not            its session is listed now and then: its updates may expire before

The entry finds the task whatever dies. A session is listed again by each process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from redis_state.errors import CorruptState
from redis_state.scripts import TaskKeys
from redis_state.stores.archive_list import SavedTaskList
from redis_state.stores.base import ARCHIVE_HOLD_MS, Base
from redis_state.stores.sessions.listed_sessions import ListedSessions
from redis_state.stores.sessions.task_status import watch_entry

T = TypeVar("T")


class SavedTasks:
    """Saves tasks of hosts, and has the archive find them. Only with an archive."""

    def __init__(self, base: Base) -> None:
        self._scripts, self._keys = base.scripts, base.keys
        self._tasks = SavedTaskList(base)
        self._sessions = ListedSessions(base)

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
            # The task is saved, whatever its session's log is. The archiver says that it is none.
            with suppress(CorruptState):
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
        return await self._sessions.now_and_then(session_id, save)


async def _awaited(save: Callable[[], Awaitable[T]]) -> T:
    return await save()
