"""The trajectories of a session, one per trace."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from redis_state.models import Trajectory
from redis_state.primitives.record import Place, Stored
from redis_state.scripts import topic_text
from redis_state.serialization import codec
from redis_state.serialization.fields import mapping
from redis_state.serialization.rows import as_object
from redis_state.stores.archive_list import record_entry, record_list
from redis_state.stores.base import Base, ms
from redis_state.transport.clock import us_of

_MOST = 1_000_000_000


class TrajectoryStore:
    """Save, load and list trajectories. A trace of two sessions is two trajectories."""

    def __init__(self, base: Base, trajectory_type: type[Any] = Trajectory) -> None:
        self._base = base
        self._type = trajectory_type
        self._archived = record_list(base, "trajectories")

    async def save(self, trace_id: str, session_id: str, trajectory: Trajectory) -> None:
        """Save a trajectory and make its trace the session's newest."""
        keys = self._base.keys
        key = keys.trajectory(session_id, trace_id)
        document = codec.encode(mapping("trajectory", trajectory.serialise()))
        ttl_ms = ms(self._base.settings.trajectories_ttl)
        place = Place(keys.traces(session_id), trace_id)
        recorded = self._base.record_first(keys.trace_sessions(trace_id), session_id, ttl_ms=ttl_ms)
        save = partial(
            self._base.records.save, key, {"document": document}, ttl_ms=ttl_ms, place=place
        )
        if self._archived is None:
            await save()
        else:
            await self._archived.covering(trajectory_entry(session_id, trace_id), save)
        await recorded

    async def load(self, trace_id: str, session_id: str) -> Trajectory | None:
        """Return a trajectory, or None if this session has none of this trace."""
        flat = self._base.fetch(self._base.keys.trajectory(session_id, trace_id))
        place = f"trajectory {trace_id}"
        return await self._base.read_record(session_id, place, flat, self._read)

    async def living(self, session_id: str, *, limit: int) -> list[str]:
        """Return a session's traces whose trajectories are there, the last saved first."""
        if limit < 1:
            return []
        index, commands = self._base.keys.traces(session_id), self._base.scripts.transport.commands
        found, now = await asyncio.gather(
            commands.zrevrange_from(index, 0, count=min(limit, _MOST)), commands.time()
        )
        scored = zip(found[::2], found[1::2], strict=True)
        return [topic_text(trace) or "" for trace, score in scored if float(score) > us_of(now)]

    async def traces(self, session_id: str, *, limit: int) -> list[str]:
        """Return a session's traces, the last saved first, also those that have expired."""
        if limit < 1:
            return []
        index = self._base.keys.traces(session_id)
        return await self._base.records.members(index, newest=min(limit, _MOST))

    async def delete(self, trace_id: str, session_id: str) -> None:
        """Delete a trajectory."""
        keys = self._base.keys
        place = Place(keys.traces(session_id), trace_id)
        await self._base.records.delete(keys.trajectory(session_id, trace_id), place=place)

    def read(self, document: bytes) -> Trajectory:
        """Read a stored document. Errors: ValueError, and those of the host's type."""
        trajectory: Trajectory = self._type.from_serialised(as_object(document))
        return trajectory

    def _read(self, record: Stored) -> Trajectory:
        return self.read(record.fields["document"])


def trajectory_entry(session_id: str, trace_id: str) -> bytes:
    """Return a trajectory's entry for the archive's list."""
    return record_entry("trajectory", session_id, trace_id)
