"""Every key of the store: one method each; its docstring says type, fields, lifetime and owner.

Shape: ``<namespace>:v1:{<scope>}:<kind>[:<id>]``. The braces hold the unit of atomicity: a
session, a trace, a token, a memory key. All keys of one script share a slot. The table in
``docs/reference/keys.md`` is generated from these docstrings.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache

from redis_state.errors import InvalidField
from redis_state.transport.key_groups import (
    A2ABooks,
    A2AKeys,
    BlobKeys,
    LogKeys,
    QueueKeys,
    StreamKeys,
    TaskIndexKeys,
    live_channel,
    log_keys,
)
from redis_state.transport.key_text import escape

_ESCAPED = re.compile(r"[A-Za-z0-9_.~%-]{1,130}")
_DIGEST = re.compile(r"[0-9a-f]{40}")
WATCH_SHARDS = 16
AGENT_SHARDS = 16
GRAPH_SHARDS = 16


def token_digest(token: str) -> str:
    """Return a token's digest: 40 hexadecimal digits of its SHA-256."""
    if not isinstance(token, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("token", f"text is needed, not {type(token).__name__}")
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def pause_id_of(token: str) -> str | None:
    """Return the public id of a worker's pause; None for a token of another kind.

    A token's text begins with its session's part of the key, so the pause is found without an
    index. It shares the session's slot. The id has the token's digest in place of the rest.
    """
    digest = token_digest(token)
    scope, dot, _ = token.rpartition(".")
    return f"{scope}:{digest}" if dot and _ESCAPED.fullmatch(scope) else None


def is_pause_id(text: str) -> bool:
    """Return whether a text is a pause's id: a token has no colon."""
    parts = text.rpartition(":") if type(text) is str else ("", "", "")
    return bool(_ESCAPED.fullmatch(parts[0]) and _DIGEST.fullmatch(parts[2]))


@lru_cache(maxsize=256)
def _watch_key(namespace: str, shard: int) -> str:
    return f"{namespace}:v1:{{/watch-{shard:02d}}}:watch"


@lru_cache(maxsize=256)
def _task_index_keys(namespace: str, shard: int) -> TaskIndexKeys:
    watch = _watch_key(namespace, shard)
    return TaskIndexKeys(watch, f"{namespace}:v1:{{/watch-{shard:02d}}}:tasks")


@lru_cache(maxsize=64)
def _queue_keys(name: str, channel: str) -> QueueKeys:
    named = {part: f"{name}:{part}" for part in QueueKeys._fields[1:-1]}
    return QueueKeys(queue=name, channel=channel, **named)


def _tag_of(key: str) -> str:
    """Return the part of a key that decides on its slot, in its braces."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return f"{{{tag}}}" if brace and end and tag else f"{{{key}}}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The key layout under one namespace."""

    namespace: str = "rs"
    # Pub/sub ignores databases: without the number two databases would share their channels.
    database: int = 0

    def __post_init__(self) -> None:
        """Refuse a namespace that could break out of its place in a key."""
        name = self.namespace
        if not name or not name.isprintable() or any(c in "{}*?[]\\: " for c in name):
            raise InvalidField("namespace", "needs text without spaces, braces, colons, wildcards")

    def _key(self, field: str, scope: str, kind: str) -> str:
        return f"{self.namespace}:v1:{{{escape(field, scope)}}}:{kind}"

    def _own(self, part: str, kind: str) -> str:
        # No escaped id has a slash: a session of any id has other keys than a part of the store.
        return f"{self.namespace}:v1:{{/{part}}}:{kind}"

    def _of_namespace(self, part: str, kind: str) -> str:
        # A session may share this slot. None of its kinds of keys is one of these.
        return self._key("namespace", f"{part}-{self.namespace}", kind)

    def _log(self, field: str, scope: str, kind: str) -> LogKeys:
        return self._log_at(self._key(field, scope, kind))

    def _log_at(self, rows: str) -> LogKeys:
        return log_keys(rows, self.database)

    def events(self, trace_id: str) -> LogKeys:
        """stream: events of a trace; ``:ids`` hash: fingerprint -> n. `events_ttl`, trimmed."""
        return self._log("trace_id", trace_id, "events")

    def planner_events(self, trace_id: str) -> LogKeys:
        """stream: planner events of a trace; ``:ids`` hash: call id -> n. `planner_events_ttl`."""
        return self._log("trace_id", trace_id, "planner-events")

    def updates(self, session_id: str) -> LogKeys:
        """stream: updates of a session; ``:ids`` hash: update_id -> n; ``:topic:<task>`` list: n;
        ``:spare`` a copy, for the length of a call; ``:live`` channel. `updates_ttl`, trimmed by
        append.
        """
        return self._log("session_id", session_id, "updates")

    def steering(self, session_id: str) -> LogKeys:
        """stream: steering of a session; ``:ids`` hash: event_id -> n; ``:topic:<task>`` list: n;
        ``:live`` channel. `steering_ttl`, trimmed by append.
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

    def conversations(self, router_session_id: str) -> str:
        """zset: trace and binding -> expiry in us: bindings that a session has used. Like them."""
        return self._key("router_session_id", router_session_id, "conversations")

    def memory(self, key: str) -> str:
        """hash: version, write, order, document: one memory state. `memory_ttl` after a save."""
        return self._key("key", key, "memory")

    def task(self, session_id: str, task_id: str) -> str:
        """hash: version, write, order, status, document, priority, result, error, progress,
        updated_at, job, queue, attempts, crashes, parent, parent_order, isolate, spent_ms,
        spent_updates, attributes, due, flow_key; interrupts, gathers, items, item_bytes, latest,
        item:<n>; pause_entry, pause_token, pause_write, waits_for, waits_box, waits_until: one
        task.
        `active_task_ttl`, while paused after the pause's deadline; `finished_task_ttl` once
        terminal; up to an eighth longer after a host's save.
        """
        return self._key("session_id", session_id, f"task:{escape('task_id', task_id)}")

    def tasks(self, session_id: str) -> str:
        """zset: task_id -> expiry in us: a session's tasks. As long as its longest-lived task."""
        return self._key("session_id", session_id, "tasks")

    def turn(self, session_id: str) -> str:
        """zset: task_id -> its place in the line in ms: the tasks of a session that run in turn and
        may be unfinished. Twice `active_task_ttl` after the last of them was made or inspected.
        """
        return self._key("session_id", session_id, "turn")

    def gathering(self, session_id: str) -> str:
        """hash: name -> task_id: the tasks of a session whose input is open; name:item -> task_id:
        the items that tasks have; ``:items`` zset: name:item -> until when in ms.
        `active_task_ttl` after the last item, and the longest wait.
        """
        return self._key("session_id", session_id, "gathering")

    def children(self, session_id: str, task_id: str) -> str:
        """zset: task_id -> expiry in us: the tasks that a task has spawned. Twice
        `active_task_ttl` after each run of the task comes to spawn them; until a later task of
        its id is made.
        """
        return self._key("session_id", session_id, f"children:{escape('task_id', task_id)}")

    def journal(self, session_id: str, task_id: str) -> str:
        """hash: <kind>:<name>#<n> -> JSON, part:<number>:<entry> -> bytes, end:<child> -> JSON,
        lane:<name> -> JSON, took:<n> -> JSON, decided:<entry> -> JSON, versions, entries;
        value:<key> -> JSON, reply:<request> -> JSON, mail:<n>:<box> -> JSON, mailed:<message>,
        box:<box>, due:<entry>, place:<entry>, asks:<box>, mail, values: a task's journal: steps, in
        chunks if large, pauses, ends of its children, published updates and values, taken steering,
        messages; ``:live`` channel. Like the task.
        """
        return self._key("session_id", session_id, f"journal:{escape('task_id', task_id)}")

    def lease(self, session_id: str, task_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which worker runs a task. Kept as long as an
        active task may live: also the last epoch, so that the next one is greater.
        """
        return self._key("session_id", session_id, f"lease:{escape('task_id', task_id)}")

    def session_token(self, token: str) -> str | None:
        """hash: state, payload, task, order, opened, expires, schema, approvals, rejections,
        escalate, escalated, seat:<actor>, vote:<actor> -> JSON, claim:<actor>, claim, actor, at,
        decision: a pause of a worker's task, named by the token's digest. A seat has its
        state: open, approved, rejected, delegated or retired. Behind it stands the time in ms, then
        the number of the vote or the new actor. Its timeout, then `resolved_token_ttl`.
        """
        pause_id = token if is_pause_id(token) else pause_id_of(token)
        if pause_id is None:
            return None
        scope, _, digest = pause_id.rpartition(":")
        return f"{self.namespace}:v1:{{{scope}}}:token:{digest}"

    def pauses(self, session_id: str) -> str:
        """zset: digest of a token -> expiry in ms: a session's open pauses. Like the last."""
        return self._key("session_id", session_id, "pauses")

    def open_pauses(self) -> str:
        """zset: key of a token -> expiry in us: all open pauses. As long as their tokens."""
        return f"{self.namespace}:v1:{{/pauses}}:open-pauses"

    def opened_pauses(self) -> str:
        """zset: key of a token -> opening in ms: the same pauses, in that order. Like the last."""
        return f"{self.namespace}:v1:{{/pauses}}:opened-pauses"

    def pause(self, token: str) -> str:
        """hash: like a session's token: a host's pause, in a slot of its own, named by the token's
        digest. `pause_ttl`, then `resolved_token_ttl`.
        """
        return self._key("token", token_digest(token), "pause")

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
        """hash: number -> bytes, ref, chunks: ``:blob:<id>`` an artifact, ``:upload:<n>`` one that
        comes; ``:expiry``, ``:use`` zset, ``:about`` hash: the books. As the retention says.
        """
        return BlobKeys(self._key("place", place, "artifacts"))

    def artifact_sessions(self) -> str:
        """zset: place -> expiry in us: where there may be artifacts. As long as the last one."""
        return f"{self.namespace}:v1:{{/artifacts}}:artifact-sessions"

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

    def conversation(self, session_id: str) -> LogKeys:
        """stream: items of a session of the OpenAI Agents SDK, and which were taken away; ``:ids``
        hash: row id -> n. `memory_ttl`, trimmed by append.
        """
        return self._log("session_id", session_id, "conversation")

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
        """hash: version, write, order, document, workflow, timestamp: a checkpoint of Microsoft's
        Agent Framework. `snapshots_ttl` after a save.
        """
        return self._key("checkpoint_id", checkpoint_id, "framework-checkpoint")

    def framework_checkpoints(self, workflow_name: str) -> str:
        """zset: checkpoint -> expiry in us: checkpoints of a workflow. As long as the newest."""
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
        """hash: ``r<place>`` a checkpoint, ``b<name>`` a channel's value, ``w<place>`` pending
        writes; owner, claim, epoch, expires, length: a thread of LangGraph, and who has claimed it.
        `graph_threads_ttl` after a write.
        """
        return self._key("thread_id", thread_id, "graph")

    def graph_order(self, thread_id: str) -> str:
        """zset: ``<namespace>:<id>``, by name: a thread's checkpoints. Like the thread."""
        return self._key("thread_id", thread_id, "graph-order")

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

    def dead_tasks(self) -> str:
        """zset: session and task -> expiry in us: tasks given up because their workers kept dying.
        As long as the last one.
        """
        return f"{self.namespace}:v1:{{/dead}}:dead-tasks"

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

    def group(self, session_id: str, group_id: str) -> str:
        """hash: version, write, order, status, document, report, reported, pending, failed,
        places, sealed, ended, <move> -> call; =<task> -> places and outcome; +<patch> -> place:
        a group of tasks. `active_task_ttl`, or `finished_task_ttl` once over.
        """
        return self._key("session_id", session_id, f"group:{escape('group_id', group_id)}")

    def groups(self, session_id: str) -> str:
        """zset: group_id -> expiry in us: a session's groups. As long as the longest-lived."""
        return self._key("session_id", session_id, "groups")

    def group_names(self, session_id: str) -> str:
        """hash: turn and name -> group_id: groups that are open. `active_task_ttl` after a new
        one.
        """
        return self._key("session_id", session_id, "group-names")

    def oauth_token(self, user_id: str, provider: str) -> str:
        """text: a user's OAuth token for a provider, sealed or not. Until the token expires,
        `oauth_token_ttl` if it does not.
        """
        return self._key("user_id", user_id, f"oauth-token:{escape('provider', provider)}")

    def job(self, job_id: str) -> str:
        """hash: version, write, order, document, next, interval, enabled, fired, ended; of a claim
        occurrence, `asked`, begun, attempts, and its lease: owner, claim, epoch, expires, length: a
        scheduled job. `jobs_ttl` beyond its next occurrence.
        """
        return self._own("jobs", f"job:{escape('job_id', job_id)}")

    def jobs(self) -> str:
        """zset: job_id -> expiry in us: all scheduled jobs. As long as the last one."""
        return self._own("jobs", "jobs")

    def jobs_of(self, session_id: str) -> str:
        """zset: job_id -> expiry in us: a session's scheduled jobs. As long as its last one."""
        return self._own("jobs", f"jobs-of:{escape('session_id', session_id)}")

    def jobs_due(self) -> str:
        """zset: job_id -> next occurrence in us: enabled jobs. As long as the last job."""
        return self._own("jobs", "jobs-due")

    def job_runs(self, job_id: str) -> LogKeys:
        """stream: runs of a job; ``:ids`` hash: fingerprint -> n. `job_runs_ttl`, trimmed."""
        return self._log_at(self._own("jobs", f"job-runs:{escape('job_id', job_id)}"))

    def stream(self, path: str) -> StreamKeys:
        """hash: id, state, type, life, expires, closed, closer, first, last, bytes, seq, origin,
        forks, about, producers, ``p:<producer>``: a durable stream; ``:rows`` stream: its rows;
        ``:live`` channel. What its creator named, else `streams_ttl` after a read or a write.
        """
        info = self._key("path", path, "stream")
        return StreamKeys(info, live_channel(info, self.database))

    def streams_of(self, creator: str) -> str:
        """zset: path -> when to look whether it is there, in us: durable streams that one caller
        of a gateway has created. `longest_stream_ttl` after the last one.
        """
        return self._key("creator", creator, "streams-of")

    def schedule(self, schedule_id: str) -> str:
        """hash: version, write, order, definition, paused, after, outbox, last, skipped, fired,
        triggers: a schedule. `schedules_ttl` after a save or a worker's look, which comes once a
        day at least until the schedule has ended.
        """
        part = escape("schedule_id", schedule_id)
        return f"{self.namespace}:v1:{{/schedules}}:schedule:{part}"

    def schedules(self) -> str:
        """zset: schedule_id -> expiry in us: all schedules. As long as the last one."""
        return f"{self.namespace}:v1:{{/schedules}}:schedules"

    def schedules_due(self) -> str:
        """zset: schedule_id -> when a worker must look at it, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self.namespace}:v1:{{/schedules}}:schedules-due"

    def call(self, beside: str, call: str) -> str:
        """string: the packed reply of a call that removes or overwrites, for its repetition; in the
        slot of what it is about. `call_timeout_s` and a minute.
        """  # noqa: D401
        return call_key(beside, call)

    def worker(self, worker: str) -> str:
        """hash: version, write, order, document: one worker process. Three of its intervals."""
        return f"{self.namespace}:v1:{{/workers}}:worker:{escape('worker', worker)}"

    def workers(self) -> str:
        """zset: worker -> expiry in us: the worker processes. As long as the last one's record."""
        return f"{self.namespace}:v1:{{/workers}}:workers"

    def copied(self, original: str) -> str:
        """hash: key -> digest of what a migration has copied to it. Seven days after a copy; until
        the migration is finished.
        """
        return f"{self.namespace}:moving:{_tag_of(original)}"

    def copy_of(self, original: str) -> str:
        """any: what a migration copies, until all of it is there. Seven days."""
        return f"{self.copied(original)}:new:{original.rpartition('}')[2]}"

    def watch(self, shard: int) -> str:
        """zset: what a process must inspect -> when, in ms; ``:clock`` string: the server's time at
        its last change; ``:history`` hash: history, walker, until: the history of the queues that
        its entries were compared with. 400 days after a write.
        """
        return _watch_key(self.namespace, shard)

    def archive_watch(self, shard: int) -> str:
        """zset: task -> when it must be archived, in ms; ``:clock`` string: the server's time at
        its last change. In the slot of the tasks' watch list. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:archive"

    def archive_sessions(self, shard: int) -> str:
        """zset: session -> when its updates must be archived, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:archive-sessions"

    def archive_since(self, shard: int) -> str:
        """zset: task that is to be archived -> 400 days after its end, in us. As long as the last
        one.
        """
        return f"{self._watch_slot(shard)}:archive-since"

    def archive_retention(self) -> str:
        """hash: owner, claim, epoch, expires, length: who removes what is over from the archive,
        and when another may. Two hours after a round.
        """
        return f"{self.namespace}:v1:{{/archive}}:retention"

    def events_watch(self, shard: int) -> str:
        """zset: trace -> when its events must be moved to PostgreSQL, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self._watch_slot(shard)}:events"

    def events_since(self, shard: int) -> str:
        """zset: trace -> since when it has events that are not in PostgreSQL, in ms. 400 days
        after a write.
        """
        return f"{self._watch_slot(shard)}:events-since"

    def _watch_slot(self, shard: int) -> str:
        return f"{self.namespace}:v1:{{/watch-{shard:02d}}}"

    def test_clock(self) -> str:
        """string: how far a test's clock is ahead of the server's, in ms. Only in namespaces of
        tests. 400 days after a move.
        """
        return self._of_namespace("clock", "shift")

    def queue(self, queue: str) -> QueueKeys:
        """zset: job id -> when it is due, in ms; ``:claims`` zset: task -> when it was claimed, in
        ms; ``:flow`` hash: its limits, 400 days after a change or a job with a key; ``:keyed``,
        ``:turns``, ``:holders``, ``:waits``, ``:rates`` zsets and ``:owners`` hash: jobs with a
        key, and those parked for a version; ``:wake`` channel; ``arq:job:<id>`` string: the job in
        arq's format.
        `active_task_ttl` after a job is due; permits 8 days after a claim.
        """
        name = self._of_namespace("queues", f"queue:{escape('queue', queue)}")
        channel = f"{name}:wake" if self.database == 0 else f"{name}:wake:{self.database}"
        return _queue_keys(name, channel)

    def queue_history(self) -> str:
        """hash: id, picking: what distinguishes the history of the namespace's queues from one that
        was lost; when arq's own runner picked jobs. 400 days, extended by sweepers.
        """
        return self._of_namespace("queues", "history")

    def rates(self) -> str:
        """zset: rate -> when all of it is there again, in ms. Eight days after a use."""
        return self._of_namespace("rates", "rates")

    def cron(self, name: str, at_ms: int) -> str:
        """hash: owner, epoch, expires: who runs a moment of a cron job. Two hours."""
        return self._of_namespace("cron", f"{escape('name', name)}:{at_ms}")

    @property
    def jobs_tag(self) -> str:
        """The beginning of all ids of jobs: what arq keeps of them is in the queues' slot."""
        return f"{{{escape('namespace', f'queues-{self.namespace}')}}}"

    def task_index(self, shard: int) -> TaskIndexKeys:
        """zset: ``<kind><value>``, status, time and id of a task: tasks of a worker as they are
        found; ``:about`` hash: id -> what is known of a task; ``:expiry`` zset: id -> when it is
        forgotten. 400 days after a new task; a task as long as its record.
        """
        return _task_index_keys(self.namespace, shard)

    def a2a_task(self, scope: str, task_id: str) -> str:
        """hash: state, phase, version, at, created, creator, updated, announce and the host's
        fields: one A2A task. `active_task_ttl` after a write, `finished_task_ttl` once ended;
        PenguiFlow's `a2a_task_ttl` after a write. A tombstone as long as the options say.
        """
        return self._a2a(scope, "task", task_id)

    def a2a_books(self, scope: str) -> A2ABooks:
        """zset: order and id: a scope's A2A tasks as they are listed; ``:places`` hash: id ->
        context, state and time; ``:expiry`` zset: id -> when. As long as the longest-lived of them.
        """
        return A2ABooks(f"{self.namespace}:v1:{{{scope}}}:a2a-tasks")

    def a2a_events(self, scope: str, task_id: str) -> LogKeys:
        """stream: events of an A2A task, each at its version; ``:ids`` hash: write -> version;
        ``:live`` channel. Half as long again as the task, trimmed by a write.
        """
        return self._log_at(self._a2a(scope, "events", task_id))

    def a2a_lease(self, scope: str, task_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which server works on an A2A task. A lease
        longer than the task.
        """
        return self._a2a(scope, "lease", task_id)

    def a2a_configs(self, scope: str, task_id: str) -> str:
        """hash: name -> number and configuration: push configurations of an A2A task. Like the
        task; `active_task_ttl` after a save while there is none.
        """
        return self._a2a(scope, "configs", task_id)

    def a2a_history(self, scope: str, task_id: str) -> str:
        """list: JSON: messages of PenguiFlow's A2A tasks. Like the task."""
        return self._a2a(scope, "history", task_id)

    def a2a_artifacts(self, scope: str, task_id: str) -> str:
        """list: JSON: artifacts of PenguiFlow's A2A tasks, as they were added. Like the task."""
        return self._a2a(scope, "artifacts", task_id)

    def _a2a(self, scope: str, kind: str, task_id: str) -> str:
        return f"{self.namespace}:v1:{{{scope}}}:a2a-{kind}:{escape('task_id', task_id)}"

    def a2a_config_scopes(self, task_id: str) -> str:
        """zset: owner's scope -> expiry in us: who may have push configurations of an A2A task of
        this id, written before they are. `active_task_ttl` after a save or a dispatch.
        """
        place = f"a2a-configs/{escape('task_id', task_id)}"
        return f"{self.namespace}:v1:{{{place}}}:a2a-config-scopes"

    def a2a_queue(self, task_id: str) -> LogKeys:
        """stream: events of a queue of the legacy A2A handler; ``:ids`` hash; ``:live``
        channel. One hour.
        """
        place = f"a2a-queue/{escape('task_id', task_id)}"
        return self._log_at(f"{self.namespace}:v1:{{{place}}}:a2a-queue")

    def a2a_queue_lease(self, task_id: str) -> str:
        """hash: owner, claim, epoch, expires, length: which server feeds a queue. One hour after
        its lease.
        """
        return f"{self.namespace}:v1:{{a2a-queue/{escape('task_id', task_id)}}}:a2a-queue-lease"

    def a2a_page_secret(self) -> str:
        """text: what the page tokens of A2A lists are signed with. 30 days after its last use."""
        return f"{self.namespace}:v1:{{/a2a-pages}}:a2a-page-secret"

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

    def a2a_watch(self, shard: int) -> str:
        """zset: A2A task -> when its owner's lease may have run out, in ms; ``:clock`` string: the
        server's time at its last change. 400 days after a write.
        """
        return f"{self.namespace}:v1:{{/a2a-watch-{shard:02d}}}:watch"


def a2a_scope(tenant: str, owner: str) -> str:
    """Return the hash tag of one owner's A2A tasks. Only scopes of A2A tasks have a slash."""
    return f"a2a/{escape('tenant', tenant)}/{escape('owner', owner)}"


def manager_scope(owner: str) -> str:
    """Return the hash tag of the A2A tasks that a task state manager keeps for an owner."""
    return f"a2a-manager/{escape('owner', owner)}"


def a2a_keys(keys: Keys, scope: str, task_id: str) -> A2AKeys:
    """Return all keys of one A2A task."""
    return A2AKeys(
        task_id,
        keys.a2a_task(scope, task_id),
        keys.a2a_books(scope),
        keys.a2a_events(scope, task_id),
        keys.a2a_lease(scope, task_id),
        keys.a2a_configs(scope, task_id),
        keys.a2a_history(scope, task_id),
        keys.a2a_artifacts(scope, task_id),
    )


PENGUIFLOW_SCOPE = "a2a-penguiflow/"


def adk_member(user_id: str, session_id: str) -> str:
    """Return the place of a session of Google's ADK in the lists of its app."""
    return f"{escape('user_id', user_id)}:{escape('session_id', session_id)}"


def call_key(beside: str, call: str) -> str:
    """Return the key of a call's reply, in the slot of another key."""
    return f"{beside[: beside.index('}') + 1]}:call:{call}"


def agent_shard(session_id: str) -> int:
    """Return the shard of an agent's session."""
    return zlib.crc32(session_id.encode("utf-8", "surrogatepass")) % AGENT_SHARDS


def graph_shard(thread_id: str) -> int:
    """Return the shard in which a thread of LangGraph is listed."""
    return zlib.crc32(thread_id.encode("utf-8", "surrogatepass")) % GRAPH_SHARDS


def artifact_place(session_id: str) -> str:
    """Return the scope of a session's artifacts: 16 hexadecimal digits, which end their ids too.

    So an artifact is found by its id alone, without an index that could disagree.
    """
    return hashlib.sha256(escape("session_id", session_id).encode()).hexdigest()[:16]


def binding_member(context_id: str | None, task_id: str) -> str:
    """Return a binding's name in its trace. No context is not the empty text."""
    context = "-" if context_id is None else "=" + escape("context_id", context_id)
    return f"{context}:{escape('task_id', task_id)}"
