"""Tasks of PenguiFlow's A2A server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    flat,
    raw,
)
from redis_state.transport.keys import A2AKeys


class A2AScripts(ScriptRunner):
    """Tasks of PenguiFlow's A2A server."""

    def create_a2a_task(
        self,
        keys: A2AKeys,
        fields: Mapping[str, bytes],
        *,
        task_id: str,
        history: Sequence[bytes],
        artifacts: Sequence[bytes],
        write: str,
        ttl_ms: int,
    ) -> PendingReply:
        """OK | TAKEN."""
        return self._run(
            "create_a2a_task",
            (keys.task, keys.tasks, keys.history, keys.artifacts, keys.push),
            (
                write,
                ttl_ms,
                raw(task_id),
                len(history),
                len(history) + len(artifacts),
                *history,
                *artifacts,
                *flat(fields),
            ),
        )

    def update_a2a_task(
        self,
        keys: A2AKeys,
        fields: Mapping[str, bytes],
        *,
        task_id: str,
        row: bytes,
        place: str,
        item: bytes,
        max_rows: int,
        write: str,
        ttl_ms: int,
    ) -> PendingReply:
        """OK n | MISSING. ``place``: history, artifacts, or nothing."""
        log = keys.updates
        return self._run(
            "update_a2a_task",
            (
                keys.task,
                keys.tasks,
                keys.history,
                keys.artifacts,
                keys.push,
                log.rows,
                log.ids,
                log.channel,
            ),
            (write, ttl_ms, raw(task_id), max_rows, row, place, item, *flat(fields)),
        )

    def read_a2a_task(self, keys: A2AKeys, *, messages: int, artifacts: bool) -> PendingReply:
        """OK fields history artifacts last last_ms | MISSING."""
        return self._run(
            "read_a2a_task",
            (keys.task, keys.history, keys.artifacts, keys.updates.ids),
            (messages, int(artifacts)),
        )

    def save_a2a_push(self, keys: A2AKeys, *, config_id: str, config: bytes) -> PendingReply:
        """OK | MISSING. An empty ``config`` deletes it."""
        return self._run_once("save_a2a_push", (keys.task, keys.push), (raw(config_id), config))
