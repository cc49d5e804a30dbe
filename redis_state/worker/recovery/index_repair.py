"""Compare the index of tasks with a task's record when a sweeper inspects it, and correct it."""

from __future__ import annotations

from contextlib import suppress

from redis_state.primitives.watchlist.watchlist import WatchClaim
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.task_status import TaskStatusView
from redis_state.stores.task_index import TaskIndex, indexed_record, stamp_of
from redis_state.worker.recovery.waiting_tasks import HOLD_MS


class IndexRepair:
    """Make the index of tasks say what the records say."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._index = TaskIndex(store.base.scripts, store.base.keys)

    async def settle(
        self,
        claim: WatchClaim,
        task: tuple[str, str],
        found: TaskStatusView | None,
        *,
        claimed_ms: int,
    ) -> bool:
        """Correct what the index says of a task; return whether it was right.

        A claim, made at ``claimed_ms``, read the index before the record was read. If both changed
        since, the next inspection finds it.
        """
        if found is None or not found.ours:
            if claim.stamp:
                await self._index.remove(claim.entry, stamp=claim.stamp)
            return True
        stamp = stamp_of(found.status, found.version, found.write, updated_us=found.updated_us)
        if claim.stamp == stamp:
            return True
        if _may_be_on_its_way(claim, found, claimed_ms):
            return False
        record = await self._store.tasks.load_fields(*task)
        if record is None:
            return False
        # Of a record that nobody can read there is nothing to list.
        with suppress(ValueError, KeyError, TypeError):
            ttl_ms = self._store.tasks.listed_ms(found.status.value)
            entry = indexed_record(claim.entry, *task, record, ttl_ms=ttl_ms)
            await self._index.put(entry, stamp=claim.stamp)
            return False
        return True


def _may_be_on_its_way(claim: WatchClaim, found: TaskStatusView, claimed_ms: int) -> bool:
    """Return whether the write of a move may be on its way. If not, the task is inspected soon.

    A sweeper and the workers come by the tasks of a long queue in the same order. So most that a
    claim finds otherwise have begun since, or have ended. The epoch says when a run has
    begun, but not on a server whose clock was set back: there it may be far ahead.
    """
    if found.status.is_terminal:
        # It is inspected once more in any case.
        return not claim.again
    return found.left_ms > 0 and 0 <= found.epoch - claimed_ms < HOLD_MS
