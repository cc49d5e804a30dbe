"""The executions of an agent, summed up: what is left of them when the next one has begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis_state.agents.state.agent_state import AgentState
from redis_state.agents.state.wire.frozen import frozen_map
from redis_state.agents.state.wire.kinds import write_moment
from redis_state.agents.storage.session_store import HasBase, SessionStore
from redis_state.errors import InvalidField
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.serialization import codec
from redis_state.stores.base import ms
from redis_state.transport.key_text import entry_id

MOST = 1_000


def summary_of(state: AgentState) -> dict[str, Any]:
    """Sum up an agent's execution. Errors: InvalidField without one."""
    execution = state.execution
    if execution is None:
        raise InvalidField("state.execution", "there is none to sum up")
    signal = execution.stop_signal()
    ended = execution.completed_at
    return {
        "executionId": execution.execution_id,
        "executionNumber": state.execution_count,
        "status": execution.status.value,
        "stepCount": execution.step_count,
        "usage": execution.usage.to_dict(),
        "duration": execution.duration_s(),
        "startedAt": write_moment(execution.started_at),
        "completedAt": None if ended is None else write_moment(ended),
        "stopReason": signal.reason.value if signal else None,
        "stopMessage": signal.message if signal else None,
        "errorCount": len(execution.errors),
    }


class ExecutionHistory:
    """Records the executions of agents, each once, and lists the newest 1,000 of an agent.

    They are kept `agent_sessions_ttl` after the last; those of a SessionStore with a longer
    ``lifetime`` as long as its sessions, which know by them what was done.
    """

    def __init__(self, store: HasBase) -> None:
        self._base = store.base
        self._ttl_ms = ms(self._base.settings.agent_sessions_ttl)
        if isinstance(store, SessionStore):
            self._ttl_ms = max(self._ttl_ms, ms(store.lifetime))

    async def record(self, agent_id: str, summary: Mapping[str, Any]) -> bool:
        """Add a summary, once per ``executionId``; return whether it was new.

        Errors: InvalidField for a summary without an id, or with what JSON does not have.
        """
        execution_id = summary.get("executionId")
        if not isinstance(execution_id, str) or not execution_id:
            raise InvalidField("executionId", "text is needed")
        kept = frozen_map(summary, "summary")  # as all of an agent: JSON, or refused
        row = (entry_id("executionId", execution_id), codec.encode(kept.to_dict()))
        return await self._log(agent_id).add(row)

    async def all(self, agent_id: str) -> Sequence[dict[str, Any]]:
        """List what is kept, the first execution first."""
        rows = await self._log(agent_id).read_all()
        return self._base.read_rows(agent_id, "execution", rows, _read)

    async def last(self, agent_id: str) -> dict[str, Any] | None:
        """Return the newest, or None."""
        rows = await self._log(agent_id).tail(count=1)
        found = self._base.read_rows(agent_id, "execution", rows, _read)
        return found[-1] if found else None

    async def knows(self, agent_id: str, execution_id: str) -> bool:
        """Return whether an execution is among those that are kept."""
        return await self._log(agent_id).find(entry_id("executionId", execution_id)) is not None

    async def find(self, agent_id: str, execution_id: str) -> dict[str, Any] | None:
        """Return an execution's summary, or None if it is not kept. Reads all that are."""
        kept = await self.all(agent_id)
        return next((each for each in kept if each.get("executionId") == execution_id), None)

    async def count(self, agent_id: str) -> int:
        """Count what is kept."""
        key = self._base.keys.executions(agent_id).rows
        return int(await self._base.scripts.transport.commands.xlen(key))

    def _log(self, agent_id: str) -> Log:
        bounds = Bounds(MOST, self._ttl_ms)
        return Log(self._base.scripts, self._base.keys.executions(agent_id), bounds)


def _read(row: Row) -> dict[str, Any]:
    found: Any = codec.decode(row.data)
    return dict(found)
