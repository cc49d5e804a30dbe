"""The steering of a session's tasks: what people and other agents want of them."""

from __future__ import annotations

from typing import Any

from redis_state.models import SteeringEvent, SteeringEventType, sanitize_steering_event
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.sent import SentContent
from redis_state.primitives.signal import Row
from redis_state.scripts import Fence
from redis_state.serialization.fields import (
    choice,
    instant,
    optional_text,
    read_instant,
    text,
    validated,
)
from redis_state.serialization.sealed import Sealed
from redis_state.stores.base import Base, ms
from redis_state.stores.sessions.session_log import SessionLog, full_id, long_id
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.key_text import entry_id, entry_id_in

_PAYLOAD = 2


class SteeringStore(SessionLog[SteeringEvent]):
    """Steering events, once per ``event_id`` and task, within the limits for untrusted input.

    One event may be sent to several tasks. The first task's row has the event's id as its own.
    """

    kind = "steering"

    def __init__(self, base: Base, event_type: type[Any] = SteeringEvent) -> None:
        settings = base.settings
        bounds = Bounds(settings.max_steering_events_per_session, ms(settings.steering_ttl))
        super().__init__(base, bounds)
        self._type = event_type

    def keys(self, session_id: str) -> LogKeys:
        """Return the log's keys."""
        return self._base.keys.steering(session_id)

    def place(self, model: SteeringEvent) -> tuple[str, str]:
        """Return a steering event's session and task."""
        return model.session_id, model.task_id

    async def save(self, model: SteeringEvent, *, fence: Fence | None = None) -> bool:
        """Append an event once per id and task, in call order; return whether it is new.

        The log then lives as long as the record of a worker's task that is not terminal. Errors:
        LeaseLost under a stale fence; OutcomeUnknown if it is appended, and that cannot be written.
        """
        is_new = await self._append(model, fence)
        with behind_a_write(self._base.scripts.transport.address):
            await self.hold(model.session_id, model.task_id)
        return is_new

    async def hold(self, session_id: str, task_id: str) -> None:
        """Keep the log as long as the record of a worker's task, unless that is terminal."""
        await self._base.scripts.hold_steering(
            self.keys(session_id),
            task=self._base.keys.task(session_id, task_id),
            spare_ms=self.bounds.ttl_ms,
        )

    async def settle(self, session_id: str) -> None:
        """Release the log once a task has ended, unless another task of the session lives on."""
        await self._base.scripts.settle_steering(
            self.keys(session_id), tasks=self._base.keys.tasks(session_id)
        )

    async def _append(self, model: SteeringEvent, fence: Fence | None) -> bool:
        if await super().save(model, fence=fence):
            return True
        log = self._log(model.session_id)
        known = await log.get(entry_id("event_id", model.event_id))
        if known is None or known.topic == model.task_id:
            return False
        row = self._write(model, entry_id_in("event_id", model.event_id, model.task_id))
        return await log.add(row, topic=model.task_id, fence=fence)

    async def save_own(self, model: SteeringEvent) -> None:
        """Append an event under an id that its caller has chosen, once, like `save`.

        Errors: KeyReused if the id is that of an event of another type or payload. Events are not
        changed, so the row itself says what was sent.
        """
        if await self.save(model):
            return
        log = self._log(model.session_id)
        row = await log.get(entry_id("event_id", model.event_id))
        if row is not None and row.topic != model.task_id:
            row = await log.get(entry_id_in("event_id", model.event_id, model.task_id))
        known = None if row is None else self._read(model.session_id, row)
        # Retention may have taken it since, and this process may lack its key.
        if known is None or any(type(each) is Sealed for each in known.payload.values()):
            return
        event = sanitize_steering_event(model)
        sent = SentContent.of(self._base.payloads, "event", event.event_type, event.payload)
        sent.check_same(known.event_type, known.payload)

    async def list(
        self, session_id: str, *, task_id: str | None, since_id: str | None, limit: int
    ) -> list[SteeringEvent]:
        """Return the newest ``limit`` events after ``since_id`` and of a task, oldest first."""
        if since_id and task_id is not None:
            own = entry_id_in("since_id", since_id, task_id)
            if await self._log(session_id).find(own) is not None:
                return await self._newest(session_id, own, task_id, limit)
        return await super().list(session_id, task_id=task_id, since_id=since_id, limit=limit)

    def write(self, model: SteeringEvent) -> tuple[bytes, bytes]:
        """Write an event, sanitised, as an entry id and a row. The caller's object stays."""
        return self._write(model, entry_id("event_id", model.event_id))

    def _write(self, model: SteeringEvent, row_id: bytes) -> tuple[bytes, bytes]:
        event = sanitize_steering_event(model)
        values = [
            optional_text("trace_id", event.trace_id),
            choice("event_type", event.event_type, SteeringEventType),
            event.payload,
            text("source", event.source),
            instant("created_at", event.created_at),
            *long_id(row_id, event.event_id),
        ]
        return row_id, self._base.payloads.row(values, _PAYLOAD, field="payload")

    def read(self, session_id: str, row: Row) -> SteeringEvent:
        """Read an event."""
        values = self._base.payloads.unpack(row.data, 5, more=1)
        trace_id, kind, payload, source, created_at, *carried = values
        event: SteeringEvent = validated(
            self._type,
            {
                "session_id": session_id,
                "task_id": row.topic or "",
                "event_id": full_id(row, carried),
                "event_type": kind,
                # One that cannot be read here is no mapping.
                "payload": {"sealed": payload} if type(payload) is Sealed else payload,
                "trace_id": trace_id,
                "source": source,
                "created_at": read_instant(created_at),
            },
        )
        return event
