"""The audit log's rows and the bindings to remote agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class StoredEvent:
    """One row of a trace's audit log. ``kind`` is an open set; ``ts`` is Unix seconds."""

    trace_id: str | None
    ts: float
    kind: str
    node_name: str | None
    node_id: str | None
    payload: Mapping[str, Any]

    @classmethod
    def from_flow_event(cls, event: Any) -> StoredEvent:
        """Build the row for a runtime event, by the attributes and ``to_payload()`` that it has."""
        return cls(
            trace_id=event.trace_id,
            ts=event.ts,
            kind=event.event_type,
            node_name=event.node_name,
            node_id=event.node_id,
            payload=dict(event.to_payload()),
        )


@dataclass(slots=True)
class RemoteBinding:
    """Ties a trace to the task of a remote agent.

    ``(trace_id, context_id, task_id)`` names the binding; ``context_id=None`` is a value of its
    own. A terminal binding is never found for a follow-up again.
    """

    trace_id: str
    context_id: str | None
    task_id: str
    agent_url: str
    router_session_id: str | None = None
    remote_skill: str | None = None
    tenant_id: str | None = None
    user_id: str | None = None
    last_remote_task_id: str | None = None
    is_terminal: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
