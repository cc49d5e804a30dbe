"""The list of dead tasks: those that were given up, with all that they have recorded.

Their workers kept dying, the server kept refusing what they wrote, or no worker could read them.
"""

from __future__ import annotations

import asyncio

from redis_state.models import TaskState, TaskStatus
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms

_PAGE = 100


async def record_dead(store: RedisStateStore, session_id: str, task_id: str) -> None:
    """List a task as dead, for as long as a finished task is kept. To be called before it is."""
    await store.base.scripts.add_member(
        store.base.keys.dead_tasks(),
        member=codec.encode([session_id, task_id]).decode(),
        ttl_ms=ms(store.settings.finished_task_ttl),
    )


async def list_dead(store: RedisStateStore, limit: int) -> list[TaskState]:
    """Return the dead tasks, the last given up first, at most ``limit``.

    What was listed and then not failed, or is gone, or is a later task of the same id, is left out.
    """
    commands, index = store.transport.commands, store.base.keys.dead_tasks()
    found: list[TaskState] = []
    start = 0
    while len(found) < limit:
        end = start + _PAGE - 1
        members: list[bytes] = await commands.zrevrange(index, start, end)
        loads = (_load(store, *codec.decode(member)) for member in members)
        found += [state for state in await asyncio.gather(*loads) if state is not None]
        if len(members) < _PAGE:
            break
        start += _PAGE
    return found[:limit]


async def _load(store: RedisStateStore, session_id: str, task_id: str) -> TaskState | None:
    found = await store.tasks.look(session_id, task_id)
    if found is None or found.status is not TaskStatus.FAILED:
        return None
    if not found.crashes:
        key = store.base.keys.task(session_id, task_id)
        if await store.transport.commands.hget(key, "dead") != b"1":
            return None
    return await store.tasks.load(session_id, task_id)
