"""Publish a handler's updates: each once, however often the handler is replayed."""

from __future__ import annotations

from typing import Any

from redis_state.errors import BackendError
from redis_state.models import StateUpdate, UpdateType
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker.tasks.move_parts import announcement
from redis_state.worker.tasks.recorded.lanes import Lane
from redis_state.worker.tasks.started import StartedRun


class Emitter:
    """Append a run's updates to its session's log, and count them in the task's journal."""

    def __init__(self, store: RedisStateStore, started: StartedRun) -> None:
        self._store = store
        self._started = started
        self._keys = store.tasks.keys(started.state.session_id, started.state.task_id)

    async def emit(
        self,
        lane: Lane,
        kind: UpdateType,
        content: Any,
        *,
        step: int | None = None,
        total: int | None = None,
    ) -> None:
        """Publish an update, unless it is one that an earlier run has published.

        The row and its count in the journal are one step. Its id is made from the task's secret,
        the lane and its number among those of its kind, and not from its content: a replay may
        write a time or a random id into it. Errors: LeaseLost, JournalRewound.
        """
        written = codec.canonical(content)
        self._store.base.payloads.check_size("content", len(written))
        fingerprint = codec.fingerprint(written.decode("utf-8", "replace"))
        repeated = lane.repeats(kind.value)
        number = lane.emit(kind.value, fingerprint)
        if repeated or self._started.replay.rehearsal is not None:
            return
        started = self._started
        update = StateUpdate(
            session_id=started.state.session_id,
            task_id=started.state.task_id,
            trace_id=started.state.trace_id,
            update_id=codec.fingerprint("update", started.secret, lane.name, kind.value, number),
            update_type=kind,
            content=content,
            step_index=step,
            total_steps=total,
        )
        try:
            reply = await self._store.base.scripts.emit_update(
                self._keys,
                announcement(self._store, update, run=started.held.epoch),
                mark=started.replay.mark,
                lane=lane.state(),
            )
        except BackendError:
            # A handler that publishes it again means the same one: it is in the log once.
            lane.failed(kind.value, fingerprint, number)
            raise
        entry = f"update:{update.update_id}"
        started.replay.learn(reply, 0, entry, what=f"task {started.state.task_id!r}")
