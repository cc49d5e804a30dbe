"""Compare the list of open pauses with a paused task's record, and list what it has lost."""

from __future__ import annotations

from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.worker.tasks.waitpoints.pause_list import PauseList
from redis_state.worker.tasks.waitpoints.pause_tokens import token_key_of, tokens_of


class PauseRepair:
    """List the pause that a task waits for, and the others that its session's index has."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._list = PauseList(store)

    async def settle(self, found: TaskStatusView) -> bool:
        """List the open pauses of a paused task's session again if the list has lost its pause.

        Return whether it had it. A pause that is decided meanwhile may be listed. The next reader
        takes it off.
        """
        if found.pause is None or found.waits_for is not None:
            return True
        key = token_key_of(self._store, found.session_id, found.pause)
        if await self._list.has(key):
            return True
        keys = {key, *await tokens_of(self._store, found.session_id)}
        await self._list.settle(sorted(keys))
        return False
