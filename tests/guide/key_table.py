"""The table of keys, made from the docstrings of `transport/keys` for `reference.py`."""

from __future__ import annotations

import inspect
import re

from redis_state.transport.key_groups import (
    A2ABooks,
    BlobKeys,
    LogKeys,
    QueueKeys,
    StreamKeys,
    TaskIndexKeys,
)
from redis_state.transport.keys import Keys


def key_table() -> str:
    """Write the table: one row for each method of the parts of Keys."""
    rows = ["| key | what | lifetime |", "| --- | --- | --- |"]
    rows += [_row(name, method) for name, method in _methods()]
    return "\n".join(rows) + "\n"


def _methods() -> list[tuple[str, object]]:
    return [
        (name, method)
        for part in Keys.__bases__
        for name, method in vars(part).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]


def _row(name: str, method: object) -> str:
    text = " ".join((inspect.getdoc(method) or "").split())
    what, _, lifetime = readable(text).rstrip(".").rpartition(". ")
    return f"| `{_shape(name)}` | {what} | {lifetime} |"


def readable(text: str) -> str:
    """Write code spans with one backtick, and angle brackets outside of them as text."""
    spans = text.replace("``", "`").split("`")
    return "`".join(
        span if place % 2 else span.replace("<", "\\<") for place, span in enumerate(spans)
    )


def _shape(name: str) -> str:
    samples = {
        "session_id": "S",
        "router_session_id": "S",
        "trace_id": "R",
        "task_id": "T",
        "member": "C:T",
        "key": "K",
        "token": "S.x",
        "session_or_trace": "S",
        "place": "P",
        "agent_id": "A",
        "scope": "a2a/N/O",
        "patch_id": "D",
        "group_id": "G",
        "user_id": "U",
        "provider": "V",
        "job_id": "J",
        "schedule_id": "E",
        "worker": "W",
        "owner": "O",
        "beside": Keys("rs").tasks("scope"),
        "call": "<call>",
        "queue": "Q",
        "name": "C",
        "at_ms": "<ms>",
        "app_name": "L",
        "handler_id": "M",
        "state_name": "Z",
        "checkpoint_id": "B",
        "workflow_name": "F",
        "source_id": "Q",
        "flow_id": "FL",
        "adk_place": "U:S",
        "thread_id": "H",
        "run_id": "N",
        "item_space": "I",
        "item_key": "X",
        "path": "Y",
        "creator": "C",
        "mcp_session": "M",
        "server": "M",
        "bus": "M",
        "original": Keys("rs").tasks("S"),
    }
    method = getattr(Keys("rs"), name)
    parameters = list(inspect.signature(method).parameters)
    found = method(*(0 if part == "shard" else samples[part] for part in parameters))
    key = found.rows if isinstance(found, LogKeys) else found
    key = key.queue if isinstance(key, QueueKeys) else key
    key = key.info if isinstance(key, StreamKeys) else key
    key = key.blobs if isinstance(key, BlobKeys) else key
    key = key.index if isinstance(key, A2ABooks | TaskIndexKeys) else key
    key = re.sub(r"[0-9a-f]{40}", "<digest>", key)
    key = re.sub(r"agents-[0-9]{2}", "agents-NN", key)
    for mark, part in {
        "{S}": "{session}",
        "{R}": "{trace}",
        "{K}": "{key}",
        "{P}": "{place}",
        "{A}": "{agent}",
        "{H}": "{thread}",
        "{L}": "{app}",
        ":M": ":<handler>",
        "handlers-of:N": "handlers-of:<run>",
        "llama-state:Z": "llama-state:<name>",
        "{B}": "{checkpoint}",
        "{F}": "{workflow}",
        "{FL}": "{flow}",
        "messages:Q": "messages:<source>",
        ":U:S": ":<user>:<session>",
        "adk-user:U": "adk-user:<user>",
        "adk-sessions-of:U": "adk-sessions-of:<user>",
        "{N}": "{run}",
        "{Y}": "{path}",
        "{I}:graph-item:X": "{namespace}:graph-item:<key>",
        "graph-items-00": "graph-items-NN",
        "graphs-00": "graphs-NN",
        "{T}": "{task}",
        "{U}": "{user}",
        "{O}": "{owner}",
        ":V": ":<provider>",
        ":J": ":<job>",
        "jobs-of:S": "jobs-of:<session>",
        ":worker:W": ":worker:<worker>",
        ":C:T": ":<context>:<task>",
        ":T": ":<task>",
        ":R": ":<trace>",
        ":S": ":<session>",
        ":D": ":<patch>",
        ":G": ":<group>",
        "watch-00": "watch-NN",
        "{a2a/N/O}": "{a2a/tenant/owner}",
        "/T}": "/task}",
        "{mcp-session/M}": "{mcp-session/session}",
        "{mcp-server/M}": "{mcp-server/server}",
        "{mcp-changes/M}": "{mcp-changes/bus}",
    }.items():
        key = key.replace(mark, part)
    return str(key)
