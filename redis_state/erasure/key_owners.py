"""Whose each family of keys is: a session's, a user's, or nobody's whom an erasure names.

A family is a method of `Keys`. Every one is in one of the tables here, so that a new one is
thought of: `tests/unit/erasure/test_key_owners.py` compares them.
"""

from __future__ import annotations

from typing import Final

from redis_state.errors import InvalidField

# Of the keys in a session's own slot: the family, the kind in the key, the class in the report.
# Without a class they are books: indexes, leases, replies of calls.
SESSION: Final[dict[str, tuple[str, str]]] = {
    "updates": ("updates", "updates"),
    "steering": ("steering", "steering"),
    "unreadable": ("unreadable", "quarantined rows"),
    "task": ("task", "tasks"),
    "tasks": ("tasks", ""),
    "turn": ("turn", ""),
    "gathering": ("gathering", ""),
    "children": ("children", ""),
    "journal": ("journal", "journals"),
    "lease": ("lease", ""),
    "session_token": ("token", "pauses"),
    "trajectory": ("trajectory", "trajectories"),
    "traces": ("traces", ""),
    "conversations": ("conversations", ""),
    "conversation": ("conversation", "conversation items"),
    "conversation_changes": ("conversation-changes", ""),
    "conversation_lease": ("conversation-lease", ""),
    "framework_messages": ("framework-messages", "framework messages"),
    "context": ("context", "contexts"),
    "patch": ("patch", "context patches"),
    "patches": ("patches", ""),
    "kept_patches": ("kept-patches", ""),
    "group": ("group", "task groups"),
    "groups": ("groups", ""),
    "group_names": ("group-names", ""),
    "graph_thread": ("graph", "graph threads"),
    "graph_order": ("graph-order", ""),
    "graph_puts": ("graph-puts", ""),
    "call": ("call", ""),
}
# Where a log's rows are counted, rather than its keys.
LOGS: Final = frozenset({"updates", "steering", "conversation", "framework-messages"})

# Of a session too, in slots that it shares or that are named otherwise.
SESSION_ELSEWHERE: Final[dict[str, str]] = {
    "artifacts": "the keys of the session's place",
    "artifact_sessions": "its member",
    "memory": "the key is the session's id, or names it: with tenant and user, or with an agent",
    "agent_session": "the agent's session of this id, with its places in the listings",
    "agent_sessions": "its members",
    "agent_expiries": "its member",
    "agent_lease": "of the agent's session",
    "graph_threads": "its members: the thread of this id, and those of its tasks",
    "graph_run": "those of its tasks; others name threads, until `graph_threads_ttl`",
    "graph_expiries": "its members",
    "events": "of each trace that the session has, unless another session has it too",
    "planner_events": "like the events",
    "bindings": "like the events, and the session's own in shared traces",
    "binding": "like the bindings",
    "trace_sessions": "its member",
    "open_pauses": "its members",
    "opened_pauses": "its members",
    "dead_tasks": "its members",
    "watch": "the entries of its tasks",
    "task_index": "what is known of its tasks",
    "archive_watch": "the entries of its tasks",
    "archive_sessions": "its entry",
    "archive_sessions_since": "its entry",
    "archive_since": "the entries of its tasks",
    "archive_records": "the entries of its trajectories, of its traces' events, of its agent's "
    "session and of its artifacts",
    "archive_records_since": "like the entries",
    "schedule": "those that submit into the session",
    "schedules": "their members",
    "schedules_due": "their entries",
    "job": "the session's scheduled jobs",
    "jobs": "their members",
    "jobs_of": "all of it",
    "jobs_due": "their members",
    "job_runs": "of its scheduled jobs",
    "queue": "the jobs of its tasks that wait, if a client of tasks erases",
    "copied": "of a migration, in the session's slot",
    "copy_of": "of a migration, in the session's slot",
}

# A user's, whatever session: removed by `forget_user`.
USER: Final[dict[str, str]] = {
    "oauth_token": "the user's tokens",
    "adk_session_at": "the user's sessions of each app",
    "adk_events": "of these sessions",
    "adk_user": "the user's state of each app",
    "adk_sessions": "their members",
    "adk_sessions_of": "all of it",
    "streams_of": "the list of the streams that the user has created",
    "stream": "the streams that the user has created",
}

# Not of a session or a user, because ...
OTHERS: Final[dict[str, str]] = {
    "pause": "a host's pause is known by its token alone: `pause_ttl`",
    "snapshots": "ASAP's tasks: known by their task's id alone, `snapshots.delete`",
    "snapshot_index": "like the snapshots",
    "executions": "an agent's log over all its sessions: ids, times and states",
    "adk_app": "an app's state, of all its users",
    "llama_handler": "LlamaIndex knows a run, and no session",
    "llama_handlers": "like the handlers",
    "llama_running": "like the handlers",
    "llama_handlers_of": "like the handlers",
    "llama_events": "like the handlers",
    "llama_ticks": "like the handlers",
    "llama_state": "like the handlers",
    "llama_states": "like the handlers",
    "framework_checkpoint": "a workflow's, known by the checkpoint's id",
    "framework_checkpoints": "a workflow's",
    "crew_flow": "CrewAI knows a flow, and no session",
    "graph_item": "of a namespace that the application chose",
    "graph_item_names": "like the items",
    "graph_item_expiries": "like the items",
    "events_watch": "names traces, until the next look at them finds no events",
    "events_since": "like the list of these looks",
    "archive_retention": "a lease of a process",
    "archive_cleaning": "a lease of a process",
    "archive_known": "an id of the archive",
    "archivers": "of processes: a minute and a half",
    "kept_elsewhere": "names no session: which other stores the namespace has",
    "worker": "of a process: three of its intervals",
    "workers": "of processes",
    "served": "names of queues and handlers, for ten minutes",
    "test_clock": "of tests",
    "queue_history": "an id of the queues",
    "queue_names": "names of queues, as long as their jobs may wait",
    "rates": "numbers under names of the application",
    "rate_settings": "like the rates",
    "cron": "moments of cron jobs",
    "a2a_task": "known by tenant and owner, which an A2A server knows: delete it there",
    "a2a_books": "like the task",
    "a2a_events": "like the task",
    "a2a_lease": "like the task",
    "a2a_configs": "like the task",
    "a2a_history": "like the task",
    "a2a_artifacts": "like the task",
    "a2a_config_scopes": "like the task",
    "a2a_queue": "one hour",
    "a2a_queue_lease": "one hour",
    "a2a_page_secret": "a secret of the servers",
    "a2a_watch": "like the task",
    "mcp_messages": "a connection of MCP, under a random name: an hour",
    "mcp_server": "a process",
    "mcp_changes": "names of resources, for a day",
}

# What an erasure says that it leaves, in each report.
ALWAYS_KEPT: Final[dict[str, str]] = {
    "replies of calls": "the queue's last replies name tasks, for `call_timeout_s` and a minute",
    "numbers of traces": "the last place of each log that was erased, until its `*_ttl`",
    "records of workers": "name the tasks that they run: three of their intervals",
    "counts": "metrics, logs and traces of processes have no content, and are not the store's",
    "backups": "of Redis, PostgreSQL and the store of claims: they end with their own retention",
}

_KINDS: Final = dict(SESSION.values())


def class_of(kind: str) -> str | None:
    """Return the class of a kind of key in a session's slot, "" for books; None for no session's.

    A trace, a memory key and a session of one name share a slot.
    """
    return _KINDS.get(kind)


def long_keys(number: int) -> dict[str, str]:
    """State what is kept of memories whose keys do not say whose they are."""
    return {
        "memories with long keys": (
            f"{number} keys are named by a digest: they end with `memory_ttl`"
        )
    }


def check_session(session_id: str) -> None:
    """Refuse an id that is no text. Errors: InvalidField."""
    if not isinstance(session_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidField("session_id", f"text is needed, not {type(session_id).__name__}")
