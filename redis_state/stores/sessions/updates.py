"""The updates of a session's tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, cast

from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.models.tasks import utc_now
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import new_write_id
from redis_state.primitives.signal import Row
from redis_state.scripts import Fence
from redis_state.serialization.fields import (
    choice,
    instant,
    optional_text,
    optional_whole,
    read_instant,
    validated,
)
from redis_state.serialization.rows import pack
from redis_state.stores.base import Base, ms
from redis_state.stores.sessions.listed_sessions import ListedSessions
from redis_state.stores.sessions.session_log import SessionLog, full_id, long_id, reported_by
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.key_text import entry_id

T = TypeVar("T")

# How many values each row has; then maybe its long id, then maybe its run.
_PLAIN = 6
_CONTENT = 2
_SEALED = "sealed"
_STATUS_CHANGE = UpdateType.STATUS_CHANGE.value
_STATUSES = frozenset(status.value for status in TaskStatus)


@dataclass(slots=True)
class NewUpdate:
    """An update that this library writes itself: nothing of it needs to be validated."""

    session_id: str
    task_id: str
    update_type: UpdateType
    content: Any
    trace_id: str | None = None
    # Shorter than a host's: it stands in Redis twice.
    update_id: str = field(default_factory=new_write_id)
    step_index: int | None = None
    total_steps: int | None = None
    created_at: datetime = field(default_factory=utc_now)


class UpdateStore(SessionLog[StateUpdate]):
    """Updates, once per ``update_id``."""

    kind = "update"

    def __init__(self, base: Base, update_type: type[Any] = StateUpdate) -> None:
        settings = base.settings
        super().__init__(base, Bounds(settings.max_updates_per_session, ms(settings.updates_ttl)))
        self._type = update_type
        self._listing = ListedSessions(base) if settings.has_archive else None

    def keys(self, session_id: str) -> LogKeys:
        """Return the log's keys."""
        return self._base.keys.updates(session_id)

    def place(self, model: StateUpdate) -> tuple[str, str]:
        """Return an update's session and task."""
        return model.session_id, model.task_id

    def save(self, model: StateUpdate, *, fence: Fence | None = None) -> Coroutine[Any, Any, bool]:
        """Append an update, as `SessionLog.save` does; with an archive, list its session for it."""
        if self._listing is None:
            return super().save(model, fence=fence)
        session_id, task_id = self.place(model)
        append = partial(
            self._log(session_id).append, [self.write(model)], topic=task_id, fence=fence
        )
        return self._listing.appending(session_id, append)

    async def listing(self, session_id: str, write: Callable[[], Awaitable[T]]) -> T:
        """Make a write that may append updates; with an archive, list their session for it."""
        if self._listing is None:
            return await write()
        return await self._listing.patching(session_id, write)

    def write(
        self, model: StateUpdate | NewUpdate, *, run: int | None = None
    ) -> tuple[bytes, bytes]:
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
        row = values if run is None else reported_by(values, run, size=_PLAIN)
        payloads = self._base.payloads
        status = _status_of(model) if payloads.seals else None
        if status is None:
            return row_id, payloads.row(row, _CONTENT, field="content")
        content = cast("dict[str, Any]", model.content)
        rest = {name: value for name, value in content.items() if name != "status"}
        parts, named = payloads.parts(), list(row)
        named[_CONTENT] = {"status": status}
        if rest:
            named[_CONTENT][_SEALED] = parts(rest, field="content")
        return row_id, parts.mark(pack(named))

    def read(self, session_id: str, row: Row) -> StateUpdate:
        """Read an update."""
        values = self._base.payloads.unpack(row.data, _PLAIN, more=1)
        trace_id, kind, content, step_index, total_steps, created_at, *carried = values
        if b"\r" in row.data and kind == _STATUS_CHANGE:
            content = _whole(content)
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


def _status_of(model: StateUpdate | NewUpdate) -> str | None:
    """Return the status of a change of status: it stays clear, for who waits without the key."""
    if model.update_type != UpdateType.STATUS_CHANGE:
        return None
    match model.content:
        case {"status": str(status)} if status in _STATUSES:
            return status
        case _:
            return None


def _whole(content: Any) -> Any:
    """Put a change of status together with what was sealed of it, unless that cannot be read."""
    if not isinstance(content, dict):
        return content
    found = cast("dict[str, Any]", content)
    rest = found.get(_SEALED)
    if not isinstance(rest, dict):
        return found
    return {"status": found["status"], **cast("dict[str, Any]", rest)}
