"""The list of dead tasks: those that were given up, with all that they have recorded.

Their workers kept dying, the server kept refusing what they wrote, or no worker could read them.
"""

from __future__ import annotations

from redis_state.errors import BackendError
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms


async def record_dead(store: RedisStateStore, session_id: str, task_id: str) -> None:
    """List a task as dead, for as long as a finished task is kept. To be called before it is."""
    await store.base.scripts.add_member(
        store.base.keys.dead_tasks(),
        member=codec.encode([session_id, task_id]).decode(),
        ttl_ms=ms(store.settings.finished_task_ttl),
    )


def unreadable(error: Exception) -> str:
    """Return why a task cannot be read. The text of what its author wrote is left out."""
    name = type(error).__name__
    said = f": {error}" if isinstance(error, (BackendError, codec.DecodeError)) else ""
    return f"the task cannot be read: {name}{said}"
