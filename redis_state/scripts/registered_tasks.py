"""Tasks that a task state manager keeps: states, events, lists."""

from __future__ import annotations

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    raw,
)
from redis_state.transport.keys import TaskStateKeys


class RegisteredScripts(ScriptRunner):
    """Tasks that a task state manager keeps: states, events, lists."""

    def register_task_state(
        self,
        keys: TaskStateKeys,
        *,
        task_id: str,
        context_id: str,
        stream_id: str,
        state: str,
        write: str,
        ttl_ms: int,
    ) -> PendingReply:
        """OK fields last last_ms | TAKEN fields last last_ms."""
        return self._run(
            "register_task_state",
            (*_registered(keys), keys.events.rows, keys.events.ids),
            (write, ttl_ms, raw(task_id), raw(context_id), raw(stream_id), state),
        )

    def record_task_event(
        self,
        keys: TaskStateKeys,
        *,
        task_id: str,
        event_id: bytes,
        state: str | None,
        ends: bool,
        row: bytes,
        max_rows: int,
        active_ms: int,
        kept_ms: int,
    ) -> PendingReply:
        """OK entry | TAKEN entry row | DENIED state | MISSING."""
        log = keys.events
        return self._run(
            "record_task_event",
            (*_registered(keys), log.rows, log.ids, log.channel),
            (
                event_id,
                raw(task_id),
                state or "",
                int(ends),
                row,
                max(max_rows, 0),
                active_ms,
                kept_ms,
            ),
        )

    def read_task_state(self, keys: TaskStateKeys) -> PendingReply:
        """OK fields last last_ms | MISSING."""
        return self._run("read_task_state", (keys.task, keys.events.ids), ())

    def set_task_stream(self, keys: TaskStateKeys, *, stream_id: str) -> PendingReply:
        """OK | MISSING."""
        return self._run_once("set_task_stream", (keys.task,), (raw(stream_id),))

    def drop_task_state(self, keys: TaskStateKeys, *, task_id: str, before_us: int) -> PendingReply:
        """OK | STALE | MISSING."""
        return self._run_once(
            "drop_task_state",
            (*_registered(keys), keys.events.rows, keys.events.ids),
            (raw(task_id), before_us),
        )

    def count_task_states(self, *, active: str, kept: str) -> PendingReply:
        """OK active completed."""
        return self._run("count_task_states", (active, kept), ())


def _registered(keys: TaskStateKeys) -> tuple[str, str, str, str]:
    return keys.task, keys.active, keys.completed, keys.kept
