"""Keys of sessions and traces: logs, documents, artifacts."""

from __future__ import annotations

from redis_state.transport.key_groups import BlobKeys, LogKeys, StreamKeys, live_channel
from redis_state.transport.key_text import escape
from redis_state.transport.keys.base import KeyLayout


class SessionLayout(KeyLayout):
    """Keys of sessions and traces: logs, documents, artifacts."""

    __slots__ = ()

    def events(self, trace_id: str) -> LogKeys:
        """stream: events of a trace; ``:ids`` hash: fingerprint -> n. `events_ttl`, trimmed."""
        return self._log("trace_id", trace_id, "events")

    def planner_events(self, trace_id: str) -> LogKeys:
        """stream: planner events of a trace; ``:ids`` hash: call id -> n. `planner_events_ttl`."""
        return self._log("trace_id", trace_id, "planner-events")

    def updates(self, session_id: str) -> LogKeys:
        """stream: updates of a session; ``:ids`` hash: update_id -> n, and the numbers of each
        task's; ``:spare`` a copy, for the length of a call; ``:live`` channel. `updates_ttl`,
        trimmed by append.
        """
        return self._log("session_id", session_id, "updates")

    def steering(self, session_id: str) -> LogKeys:
        """stream: steering of a session; ``:ids`` hash: event_id -> n, and the numbers of each
        task's; ``:live`` channel. `steering_ttl`, or like a worker's task that is not terminal;
        trimmed by append.
        """
        return self._log("session_id", session_id, "steering")

    def unreadable(self, session_or_trace: str) -> str:
        """hash: place -> JSON: reason, row: rows that could not be read, at most 100. 7 days."""
        return self._key("scope", session_or_trace, "unreadable")

    def trace_sessions(self, trace_id: str) -> str:
        """zset: session_id -> expiry in us: the sessions that have a trajectory of a trace, or a
        binding in it. As long as the last of these.
        """
        return self._key("trace_id", trace_id, "trace-sessions")

    def bindings(self, trace_id: str) -> str:
        """zset: binding -> expiry in us. As long as its longest-lived binding."""
        return self._key("trace_id", trace_id, "bindings")

    def binding(self, trace_id: str, member: str) -> str:
        """hash: version, write, order, document: a remote binding. `bindings_ttl` after a save."""
        return self._key("trace_id", trace_id, f"binding:{member}")

    def memory(self, key: str) -> str:
        """hash: version, write, order, document: one memory state. `memory_ttl` after a save."""
        return self._key("key", key, "memory")

    def trajectory(self, session_id: str, trace_id: str) -> str:
        """hash: version, write, order, document: a trajectory. `trajectories_ttl` after a save."""
        return self._key("session_id", session_id, f"trajectory:{escape('trace_id', trace_id)}")

    def traces(self, session_id: str) -> str:
        """zset: trace_id -> expiry in us: a session's traces. As long as its newest trajectory."""
        return self._key("session_id", session_id, "traces")

    def snapshots(self, task_id: str) -> str:
        """hash: number -> row, number: -> id: a task's snapshots. `snapshots_ttl` after a save."""
        return self._key("task_id", task_id, "snapshots")

    def snapshot_index(self, task_id: str) -> str:
        """zset: v:version, c:version, i:id:version: versions, checkpoints and ids, in order as
        text. Like the snapshots.
        """
        return self._key("task_id", task_id, "snapshot-index")

    def artifacts(self, place: str) -> BlobKeys:
        """hash: number -> bytes, ref, chunks, kept: ``:blob:<id>`` an artifact, ``:upload:<n>`` one
        that comes; ``:expiry``, ``:use`` zset, ``:about`` hash: the books. As the retention says.
        hash: ``:reference:<id>`` what waits for the archive, ``:references`` zset: id -> expiry in
        us. `artifact_references_ttl` after it was made.
        """
        return BlobKeys(self._key("place", place, "artifacts"))

    def artifact_sessions(self) -> str:
        """zset: place -> expiry in us: where there may be artifacts. As long as the last one."""
        return f"{self.namespace}:v1:{{/artifacts}}:artifact-sessions"

    def context(self, session_id: str) -> str:
        """hash: version, write, order, number, hash, call, places, llm_context, tool_context,
        memory, artifacts, and of each its `:write`; =<task> -> place and result: a session's
        context. `contexts_ttl` after a write.
        """
        return self._key("session_id", session_id, "context")

    def patch(self, session_id: str, patch_id: str) -> str:
        """hash: state, payload, expires, claim, by, at, decision, task, order, call, resolver: a
        patch of a session's context. `pending_patch_ttl`, then `resolved_token_ttl`.
        """
        return self._key("session_id", session_id, f"patch:{escape('patch_id', patch_id)}")

    def patches(self, session_id: str) -> str:
        """zset: patch_id -> expiry in us: patches that wait for a decision. As long as the last."""
        return self._key("session_id", session_id, "patches")

    def kept_patches(self, session_id: str) -> str:
        """zset: patch_id -> expiry in us: all patches, those that were decided too. As long as the
        last.
        """
        return self._key("session_id", session_id, "kept-patches")

    def oauth_token(self, user_id: str, provider: str) -> str:
        """text: a user's OAuth token for a provider, sealed or not. Until the token expires,
        `oauth_token_ttl` if it does not.
        """
        return self._key("user_id", user_id, f"oauth-token:{escape('provider', provider)}")

    def stream(self, path: str) -> StreamKeys:
        """hash: id, state, type, life, expires, closed, closer, first, last, bytes, seq, origin,
        forks, about, creator, producers, ``p:<producer>``: a durable stream; ``:rows`` stream: its
        rows; ``:live`` channel. What its creator named, else `streams_ttl` after a read or a write.
        """
        info = self._key("path", path, "stream")
        return StreamKeys(info, live_channel(info, self.database))

    def streams_of(self, creator: str) -> str:
        """zset: path -> when to look whether it is there, in us: durable streams that one caller
        of a gateway has created. `longest_stream_ttl` after the last one.
        """
        return self._key("creator", creator, "streams-of")
