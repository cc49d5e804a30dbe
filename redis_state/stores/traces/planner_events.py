"""The events of a trace's planner: append-only, in the order of the calls."""

from __future__ import annotations

from typing import Any

from redis_state.models import PlannerEvent
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import new_write_id
from redis_state.primitives.signal import Row
from redis_state.serialization import codec
from redis_state.serialization.fields import mapping, number
from redis_state.serialization.rows import pack, unpack
from redis_state.stores.base import Base, ms

_FIELDS = (
    "event_type",
    "ts",
    "trajectory_step",
    "thought",
    "node_name",
    "latency_ms",
    "token_estimate",
    "error",
    "extra",
)


class PlannerEventStore:
    """Save and list planner events."""

    def __init__(self, base: Base, event_type: type[Any] = PlannerEvent) -> None:
        self._base = base
        self._type = event_type
        self._bounds = Bounds(
            base.settings.max_planner_events_per_trace, ms(base.settings.planner_events_ttl)
        )

    async def save(self, trace_id: str, event: PlannerEvent) -> None:
        """Append an event. Equal events are legitimate and all kept: only the call is once-only."""
        values = {name: getattr(event, name) for name in _FIELDS}
        values["ts"] = number("ts", event.ts)
        values["latency_ms"] = _optional_number("latency_ms", event.latency_ms)
        values["extra"] = mapping("extra", event.extra)
        row = pack(list(values.values()))
        await self._log(trace_id).add((new_write_id().encode(), row))

    async def list(self, trace_id: str) -> list[PlannerEvent]:
        """Return a trace's planner events in the order saved; their ``ts`` says nothing."""
        rows = await self._log(trace_id).read_all()
        return self._base.read_rows(trace_id, "planner event", rows, self._read)

    def _log(self, trace_id: str) -> Log:
        return Log(self._base.scripts, self._base.keys.planner_events(trace_id), self._bounds)

    def _read(self, row: Row) -> PlannerEvent:
        values = dict(zip(_FIELDS, unpack(row.data, len(_FIELDS)), strict=True))
        if not isinstance(values["extra"], dict):
            raise codec.DecodeError("a planner event without its extra fields")
        values["ts"] = float(values["ts"])  # NaN is stored as text
        if values["latency_ms"] is not None:
            values["latency_ms"] = float(values["latency_ms"])
        event: PlannerEvent = self._type(**values)
        return event


def _optional_number(field: str, value: object) -> float | None:
    return None if value is None else number(field, value)
