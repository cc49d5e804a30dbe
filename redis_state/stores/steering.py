"""The steering of a session's tasks: what people and other agents want of them."""

from __future__ import annotations

from typing import Any

from redis_state.models import SteeringEvent, SteeringEventType, sanitize_steering_event
from redis_state.primitives.log import Bounds
from redis_state.primitives.signal import Row
from redis_state.stores.base import Base, ms, pack, unpack
from redis_state.stores.session_log import SessionLog, full_id, long_id
from redis_state.stores.values import choice, instant, optional_text, read_instant, text, validated
from redis_state.transport.keys import LogKeys, entry_id


class SteeringStore(SessionLog[SteeringEvent]):
    """Steering events, once per ``event_id``, within the limits for untrusted input."""

    kind = "steering"

    def __init__(self, base: Base, event_type: type[Any] = SteeringEvent) -> None:
        settings = base.settings
        bounds = Bounds(settings.max_steering_events_per_session, ms(settings.steering_ttl))
        super().__init__(base, bounds)
        self._type = event_type

    def keys(self, session_id: str) -> LogKeys:
        """Name the log's keys."""
        return self._base.keys.steering(session_id)

    def place(self, model: SteeringEvent) -> tuple[str, str]:
        """Tell a steering event's session and task."""
        return model.session_id, model.task_id

    def write(self, model: SteeringEvent) -> tuple[bytes, bytes]:
        """Write an event, sanitised, as an entry id and a row. The caller's object stays."""
        event = sanitize_steering_event(model)
        row_id = entry_id("event_id", event.event_id)
        values = [
            optional_text("trace_id", event.trace_id),
            choice("event_type", event.event_type, SteeringEventType),
            event.payload,
            text("source", event.source),
            instant("created_at", event.created_at),
            *long_id(row_id, event.event_id),
        ]
        return row_id, pack(values)

    def read(self, session_id: str, row: Row) -> SteeringEvent:
        """Read an event."""
        trace_id, kind, payload, source, created_at, *carried = unpack(row.data, 5, more=1)
        event: SteeringEvent = validated(
            self._type,
            {
                "session_id": session_id,
                "task_id": row.topic or "",
                "event_id": full_id(row, carried),
                "event_type": kind,
                "payload": payload,
                "trace_id": trace_id,
                "source": source,
                "created_at": read_instant(created_at),
            },
        )
        return event
