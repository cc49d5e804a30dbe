"""ASAP's snapshot stores on Redis, for as many replicas as a server has.

    app = create_app(manifest, registry, snapshot_store=create_snapshot_store())

`create_snapshot_store` makes the one that blocks, which ASAP's server and examples take, and
`create_async_snapshot_store` the one for `await`. `move_task` moves a stored task by ASAP's rules.
"""

from __future__ import annotations

from redis_state.integrations.asap.snapshots import (
    AsyncRedisSnapshotStore,
    RedisSnapshotStore,
    create_async_snapshot_store,
    create_snapshot_store,
)
from redis_state.integrations.asap.tasks import move_task

__all__ = [
    "AsyncRedisSnapshotStore",
    "RedisSnapshotStore",
    "create_async_snapshot_store",
    "create_snapshot_store",
    "move_task",
]
