"""Tasks that a task state manager keeps: states, events, lists."""

from __future__ import annotations

from redis_state.transport.keys import TaskStateKeys
from redis_state.transport.scripts.run import (
    Reply,
    ScriptRunner,
    raw,
)


class RegisteredScripts(ScriptRunner):
    """Tasks that a task state manager keeps: states, events, lists."""

    async def register_task_state(
        self,
        keys: TaskStateKeys,
        *,
        task_id: str,
        context_id: str,
        stream_id: str,
        state: str,
        write: str,
        ttl_ms: int,
    ) -> Reply:
        """OK fields last last_ms | TAKEN fields last last_ms."""
        return await self._run(
            "register_task_state",
            (*_registered(keys), keys.events.rows, keys.events.ids),
            (write, ttl_ms, raw(task_id), raw(context_id), raw(stream_id), state),
        )

    async def record_task_event(
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
    ) -> Reply:
        """OK entry | TAKEN entry row | DENIED state | MISSING."""
        log = keys.events
        return await self._run(
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

    async def read_task_state(self, keys: TaskStateKeys) -> Reply:
        """OK fields last last_ms | MISSING."""
        return await self._run("read_task_state", (keys.task, keys.events.ids), ())

    async def set_task_stream(self, keys: TaskStateKeys, *, stream_id: str) -> Reply:
        """OK | MISSING."""
        return await self._run("set_task_stream", (keys.task,), (raw(stream_id),))

    async def drop_task_state(self, keys: TaskStateKeys, *, task_id: str, before_us: int) -> Reply:
        """OK | STALE | MISSING."""
        return await self._run(
            "drop_task_state",
            (*_registered(keys), keys.events.rows, keys.events.ids),
            (raw(task_id), before_us),
        )

    async def count_task_states(self, *, active: str, kept: str) -> Reply:
        """OK active completed."""
        return await self._run("count_task_states", (active, kept), ())


def _registered(keys: TaskStateKeys) -> tuple[str, str, str, str]:
    return keys.task, keys.active, keys.completed, keys.kept
