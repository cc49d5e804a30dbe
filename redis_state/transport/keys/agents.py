"""Keys of agents' sessions."""

from __future__ import annotations

from redis_state.transport.key_groups import LogKeys
from redis_state.transport.key_text import escape
from redis_state.transport.keys.base import KeyLayout
from redis_state.transport.keys.names import agent_shard


class AgentLayout(KeyLayout):
    """Keys of agents' sessions."""

    __slots__ = ()

    def agent_session(self, session_id: str) -> str:
        """hash: version, write, writes, created, born, tags, header, definition, head, parts,
        ``s:<n>``, ``m<k>:<n>``: an agent's session. `agent_sessions_ttl` after a save.
        """
        return f"{self._agents(session_id)}:session:{escape('session_id', session_id)}"

    def agent_sessions(self, shard: int) -> str:
        """zset: ``<tag>:<created>:<id>``, by name: the agents' sessions of a shard, by status and
        agent. As long as the last one saved.
        """
        return f"{self.namespace}:v1:{{/agents-{shard:02d}}}:sessions"

    def agent_expiries(self, shard: int) -> str:
        """zset: ``<created>:<id> <tags>`` -> expiry in ms: where a shard's sessions are listed,
        and until when. As long as the last one saved.
        """
        return f"{self.namespace}:v1:{{/agents-{shard:02d}}}:expiries"

    def agent_lease(self, session_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which process executes an agent's session.
        `agent_sessions_ttl`.
        """
        return f"{self._agents(session_id)}:lease:{escape('session_id', session_id)}"

    def executions(self, agent_id: str) -> LogKeys:
        """stream: an agent's executions; ``:ids`` hash: execution id -> n. `agent_sessions_ttl`."""
        return self._log("agent_id", agent_id, "executions")

    def _agents(self, session_id: str) -> str:
        # Its listing and its lease are in the same script as the session, so in the same slot.
        shard = agent_shard(session_id)
        return f"{self.namespace}:v1:{{/agents-{shard:02d}}}"
