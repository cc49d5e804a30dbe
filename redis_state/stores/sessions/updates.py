"""The updates of a session's tasks."""

from __future__ import annotations

from typing import Any

from redis_state.models import StateUpdate, UpdateType
from redis_state.primitives.log import Bounds
from redis_state.primitives.signal import Row
from redis_state.serialization.fields import (
    choice,
    instant,
    optional_text,
    optional_whole,
    read_instant,
    validated,
)
from redis_state.serialization.rows import pack, unpack
from redis_state.stores.base import Base, ms
from redis_state.stores.sessions.session_log import SessionLog, full_id, long_id, reported_by
from redis_state.transport.keys import LogKeys, entry_id

# How many values each row has; then maybe its long id, then maybe its run.
_PLAIN = 6


class UpdateStore(SessionLog[StateUpdate]):
    """Updates, once per ``update_id``."""

    kind = "update"

    def __init__(self, base: Base, update_type: type[Any] = StateUpdate) -> None:
        settings = base.settings
        super().__init__(base, Bounds(settings.max_updates_per_session, ms(settings.updates_ttl)))
        self._type = update_type

    def keys(self, session_id: str) -> LogKeys:
        """Return the log's keys."""
        return self._base.keys.updates(session_id)

    def place(self, model: StateUpdate) -> tuple[str, str]:
        """Return an update's session and task."""
        return model.session_id, model.task_id

    def write(self, model: StateUpdate, *, run: int | None = None) -> tuple[bytes, bytes]:
        """Write an update as an entry id and a row. ``run`` is the epoch of the publishing run.

        `start_task` writes the epoch that it gives in place of a 0.
        """
        row_id = entry_id("update_id", model.update_id)
        values = [
            optional_text("trace_id", model.trace_id),
            choice("update_type", model.update_type, UpdateType),
            model.content,
            optional_whole("step_index", model.step_index),
            optional_whole("total_steps", model.total_steps),
            instant("created_at", model.created_at),
            *long_id(row_id, model.update_id),
        ]
        return row_id, pack(values if run is None else reported_by(values, run, size=_PLAIN))

    def read(self, session_id: str, row: Row) -> StateUpdate:
        """Read an update."""
        values = unpack(row.data, _PLAIN, more=1)
        trace_id, kind, content, step_index, total_steps, created_at, *carried = values
        update: StateUpdate = validated(
            self._type,
            {
                "session_id": session_id,
                "task_id": row.topic or "",
                "trace_id": trace_id,
                "update_id": full_id(row, carried),
                "update_type": kind,
                "content": content,
                "step_index": step_index,
                "total_steps": total_steps,
                "created_at": read_instant(created_at),
            },
        )
        return update
