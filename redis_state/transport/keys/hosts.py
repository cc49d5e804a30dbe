"""Keys of the frameworks that keep their state here."""

from __future__ import annotations

from redis_state.transport.key_groups import LogKeys
from redis_state.transport.key_text import escape
from redis_state.transport.keys.base import KeyLayout


class HostLayout(KeyLayout):
    """Keys of the frameworks that keep their state here."""

    __slots__ = ()

    def conversations(self, router_session_id: str) -> str:
        """zset: trace and binding -> expiry in us: bindings that a session has used. Like them."""
        return self._key("router_session_id", router_session_id, "conversations")

    def conversation(self, session_id: str) -> LogKeys:
        """stream: items of a session of the OpenAI Agents SDK, and which were taken away; ``:ids``
        hash: row id -> n. `memory_ttl`, trimmed by append.
        """
        return self._log("session_id", session_id, "conversation")

    def conversation_changes(self, session_id: str) -> str:
        """zset: name -> time in ms: changes of a session of the OpenAI Agents SDK that were made,
        the newest. `memory_ttl`.
        """
        return self._key("session_id", session_id, "conversation-changes")

    def conversation_lease(self, session_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which run of an agent has claimed a session
        of the OpenAI Agents SDK. `memory_ttl`.
        """
        return self._key("session_id", session_id, "conversation-lease")

    def adk_session_at(self, app_name: str, adk_place: str) -> str:
        """hash: version, write, order, updated, end, last, place, s:<name>: a session of Google's
        ADK, named by its user and its id. `agent_sessions_ttl` after an event.
        """
        return self._key("app_name", app_name, f"adk-session:{adk_place}")

    def adk_events(self, app_name: str, adk_place: str) -> LogKeys:
        """stream: events of a session of Google's ADK; ``:ids`` hash: event id -> n.
        `agent_sessions_ttl` after an event, trimmed by append.
        """
        return self._log_at(self._key("app_name", app_name, f"adk-events:{adk_place}"))

    def adk_user(self, app_name: str, user_id: str) -> str:
        """hash: s:<name>: a user's state in Google's ADK. Like the user's newest session."""
        return self._key("app_name", app_name, f"adk-user:{escape('user_id', user_id)}")

    def adk_app(self, app_name: str) -> str:
        """hash: s:<name>: an app's state in Google's ADK. Like the app's newest session."""
        return self._key("app_name", app_name, "adk-app")

    def adk_sessions(self, app_name: str) -> str:
        """zset: user and session -> expiry in us: an app's sessions. As long as the newest."""
        return self._key("app_name", app_name, "adk-sessions")

    def adk_sessions_of(self, app_name: str, user_id: str) -> str:
        """zset: user and session -> expiry in us: a user's sessions. As long as the newest."""
        return self._key("app_name", app_name, f"adk-sessions-of:{escape('user_id', user_id)}")

    def llama_handler(self, handler_id: str) -> str:
        """hash: version, write, order, document, run: a handler of LlamaIndex's workflows.
        `agent_sessions_ttl` after a write.
        """
        return self._own("llama", f"llama-handler:{escape('handler_id', handler_id)}")

    def llama_handlers(self) -> str:
        """zset: handler -> expiry in us: all handlers of LlamaIndex. As long as the newest."""
        return self._own("llama", "llama-handlers")

    def llama_running(self) -> str:
        """zset: handler -> expiry in us: handlers that have not ended. As long as the newest."""
        return self._own("llama", "llama-running")

    def llama_handlers_of(self, run_id: str) -> str:
        """zset: handler -> expiry in us: the handlers of a run. As long as the newest."""
        return self._own("llama", f"llama-handlers-of:{escape('run_id', run_id)}")

    def llama_events(self, run_id: str) -> LogKeys:
        """stream: events of a run of LlamaIndex; ``:ids`` hash: write id -> n; ``:live`` channel.
        `agent_sessions_ttl`, trimmed by append.
        """
        return self._log("run_id", run_id, "llama-events")

    def llama_ticks(self, run_id: str) -> LogKeys:
        """stream: ticks of a run of LlamaIndex; ``:ids`` hash: write id -> n.
        `agent_sessions_ttl`.
        """
        return self._log("run_id", run_id, "llama-ticks")

    def llama_state(self, run_id: str, state_name: str) -> str:
        """hash: version, write, order, document: a state of a run of LlamaIndex.
        `agent_sessions_ttl` after a write.
        """
        return self._key("run_id", run_id, f"llama-state:{escape('namespace', state_name)}")

    def llama_states(self, run_id: str) -> str:
        """zset: name -> expiry in us: the states of a run. As long as the newest."""
        return self._key("run_id", run_id, "llama-states")

    def framework_checkpoint(self, checkpoint_id: str) -> str:
        """hash: version, write, order, document, workflow, timestamp, entry: a checkpoint of
        Microsoft's Agent Framework. `snapshots_ttl` after a save.
        """
        return self._key("checkpoint_id", checkpoint_id, "framework-checkpoint")

    def framework_checkpoints(self, workflow_name: str) -> str:
        """zset: ``<entry> <checkpoint>`` -> expiry in us: checkpoints of a workflow, and saves that
        ended half way. As long as the newest.
        """
        return self._key("workflow_name", workflow_name, "framework-checkpoints")

    def framework_messages(self, session_id: str, source_id: str) -> LogKeys:
        """stream: messages of a session of Microsoft's Agent Framework; ``:ids`` hash: write id
        -> n. `memory_ttl`, trimmed by append.
        """
        source = escape("source_id", source_id)
        return self._log_at(self._key("session_id", session_id, f"framework-messages:{source}"))

    def crew_flow(self, flow_id: str) -> str:
        """hash: version, write, order, state, method, pending: the state of a flow of
        CrewAI, and what it waits for. `snapshots_ttl` after a save.
        """
        return self._key("flow_uuid", flow_id, "crew-flow")

    def graph_thread(self, thread_id: str) -> str:
        """hash: ``r<place>`` a checkpoint, ``b<name>`` a channel's value or what it adds to
        another, ``w<place>`` pending writes; owner, claim, epoch, expires, length: a thread
        of LangGraph, and who has claimed it.
        `graph_threads_ttl` after a write.
        """
        return self._key("thread_id", thread_id, "graph")

    def graph_order(self, thread_id: str) -> str:
        """zset: ``<namespace>:<id>``, by name: a thread's checkpoints. Like the thread."""
        return self._key("thread_id", thread_id, "graph-order")

    def graph_puts(self, thread_id: str) -> str:
        """list: an id, then ``<namespace>:<id>`` of each checkpoint that is put during a pruning of
        the thread. A minute after the pruning's last step.
        """
        return self._key("thread_id", thread_id, "graph-puts")

    def graph_run(self, run_id: str) -> str:
        """zset: thread -> expiry in us: where a run of LangGraph has checkpoints.
        `graph_threads_ttl` after its last new thread.
        """
        return self._key("run_id", run_id, "graph-run")

    def graph_threads(self, shard: int) -> str:
        """zset: threads of LangGraph in a shard, by name. As long as the last one listed."""
        return f"{self.namespace}:v1:{{/graphs-{shard:02d}}}:threads"

    def graph_expiries(self, shard: int) -> str:
        """zset: thread -> expiry in ms: until when a shard's threads are listed. As long as the
        last one listed.
        """
        return f"{self.namespace}:v1:{{/graphs-{shard:02d}}}:expiries"

    def graph_item(self, item_space: str, item_key: str) -> str:
        """hash: value, created, updated, ttl: an item of LangGraph's store. `graph_items_ttl`, or
        its own, after a write or a read that refreshes it.
        """
        item = escape("key", item_key)
        return f"{self._key('namespace', item_space, 'graph-item')}:{item}"

    def graph_item_names(self, shard: int) -> str:
        """zset: namespace and key, by name: items of LangGraph's store in a shard. As long as the
        last one listed.
        """
        return f"{self.namespace}:v1:{{/graph-items-{shard:02d}}}:items"

    def graph_item_expiries(self, shard: int) -> str:
        """zset: namespace and key -> expiry in ms: until when a shard's items are listed. As long
        as the last one listed.
        """
        return f"{self.namespace}:v1:{{/graph-items-{shard:02d}}}:expiries"

    def mcp_messages(self, mcp_session: str) -> LogKeys:
        """stream: what an MCP server sent in one session; ``:ids`` hash: row id -> n; ``:live``
        channel. What the event store says, an hour by default, trimmed by append.
        """
        place = f"mcp-session/{escape('mcp_session', mcp_session)}"
        return self._log_at(f"{self.namespace}:v1:{{{place}}}:mcp-messages")

    def mcp_server(self, server: str) -> str:
        """hash: owner, claim, epoch, expires, length: the lease by which an MCP server is known to
        live. As long as its messages.
        """
        place = f"mcp-server/{escape('server', server)}"
        return f"{self.namespace}:v1:{{{place}}}:mcp-server"

    def mcp_changes(self, bus: str) -> LogKeys:
        """stream: changes that MCP servers announce to their subscribers; ``:ids`` hash: row id ->
        n; ``:live`` channel. One day, trimmed by append.
        """
        place = f"mcp-changes/{escape('bus', bus)}"
        return self._log_at(f"{self.namespace}:v1:{{{place}}}:mcp-changes")
