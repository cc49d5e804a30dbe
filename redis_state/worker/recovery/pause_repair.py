"""Compare the list of open pauses with a paused task's record, and list what it has lost."""

from __future__ import annotations

import asyncio

from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.tasks.waitpoints.pause_list import PauseList
from redis_state.worker.tasks.waitpoints.pause_tokens import token_key_of, tokens_of


class PauseRepair:
    """List the pause that a task waits for, and the others that its session's index has."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._list = PauseList(store)
        # The sessions whose pauses are being listed; each becomes whether all of them were.
        self._listing: dict[str, asyncio.Future[bool]] = {}

    async def settle(self, found: TaskStatusView) -> bool:
        """List the open pauses of a paused task's session again if the list has lost its pause.

        Return whether it had it. A pause that is decided meanwhile may be listed. The next reader
        takes it off. Of a session's tasks that are inspected together one lists them all: each
        token is read twice at most.
        """
        if found.pause is None or found.waits_for is not None:
            return True
        session_id = found.session_id
        key = token_key_of(self._store, session_id, found.pause)
        if await self._list.has(key) or await self._list.is_timer(key):
            return True
        while (listing := self._listing.get(session_id)) is not None:
            if await asyncio.shield(listing):
                await self._list.settle([key])
                return False
        await self._list_all(session_id, key)
        return False

    async def _list_all(self, session_id: str, key: str) -> None:
        listing = asyncio.get_running_loop().create_future()
        self._listing[session_id] = listing
        done = False
        try:
            others = {*await tokens_of(self._store, session_id)} - {key}
            # What is listed last shows that the others were.
            await self._list.settle([*sorted(others), key])
            done = True
        finally:
            del self._listing[session_id]
            listing.set_result(done)
