"""What is kept of a trace, and which sessions use it.

A trace's events, planner events and bindings stand in its own slot; the trajectories and
conversations that make a session use it stand in the session's. So the trace notes its sessions:
each save of a trajectory or of a conversation notes its session first. A note without what it
stands for only keeps the trace longer, at most as long as the note.
"""

from __future__ import annotations

from collections.abc import Collection

from redis_state.scripts import TraceKeys
from redis_state.stores.base import Base
from redis_state.stores.traces.audit_events import GLOBAL_TRACE, EventStore
from redis_state.stores.traces.bindings import BindingStore
from redis_state.stores.traces.trajectories import TrajectoryStore


class TraceStore:
    """Take a session out of its traces."""

    def __init__(
        self,
        base: Base,
        bindings: BindingStore,
        trajectories: TrajectoryStore,
        events: EventStore,
    ) -> None:
        self._base = base
        self._events = events
        self._bindings = bindings
        self._trajectories = trajectories

    async def clear(
        self, session_id: str, *, also: Collection[str] = (), keeps: Collection[str] = ()
    ) -> None:
        """Delete a session's trajectories and conversations, and of each trace that they used what
        no other session uses. ``also`` are traces that Redis does not list. Of traces that it
        ``keeps`` only what is the session's own goes.

        One step for each trace. Interrupted, it can be repeated: a trace is named by the session
        until it has been left.
        """
        used = await self._bindings.conversations(session_id)
        traces = await self._trajectories.traces(session_id, limit=1_000_000)
        for trace_id in dict.fromkeys([*traces, *(trace_id for trace_id, _ in used), *also]):
            # Events of no trace name none, so they are no session's.
            stays = trace_id == GLOBAL_TRACE or trace_id in keeps
            await self._leave(session_id, trace_id, stays=stays)
            await self._trajectories.delete(trace_id, session_id)
        await self._bindings.forget(session_id, used)

    async def _leave(self, session_id: str, trace_id: str, *, stays: bool) -> None:
        # What was set aside here in the background must not come after.
        await self._base.settle()
        own, bindings = await self._bindings.own_first(trace_id, session_id)
        await self._base.settle()
        keys = self._base.keys
        reply = await self._base.scripts.leave_trace(
            TraceKeys(
                sessions=keys.trace_sessions(trace_id),
                events=keys.events(trace_id),
                planner_events=keys.planner_events(trace_id),
                unreadable=keys.unreadable(trace_id),
                bindings=keys.bindings(trace_id),
            ),
            session=session_id,
            keeps=stays,
            own=own,
            bindings=bindings,
        )
        if reply.facts[0] == 0:
            await self._events.forget(trace_id)
