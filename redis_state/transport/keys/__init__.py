"""Every key of the store: one method each; its docstring says type, fields, lifetime and owner.

Shape: ``<namespace>:v1:{<scope>}:<kind>[:<id>]``. The braces hold the unit of atomicity: a
session, a trace, a token, a memory key. All keys of one script share a slot. The table in
``docs/reference/keys.md`` is generated from these docstrings.
"""

from __future__ import annotations

from redis_state.transport.keys.base import KeyLayout
from redis_state.transport.keys.layout import Keys, a2a_keys
from redis_state.transport.keys.names import (
    AGENT_SHARDS,
    GRAPH_SHARDS,
    PENGUIFLOW_SCOPE,
    WATCH_SHARDS,
    a2a_scope,
    adk_member,
    agent_shard,
    artifact_place,
    binding_member,
    call_key,
    graph_shard,
    graph_task,
    is_pause_id,
    manager_scope,
    pause_id_of,
    token_digest,
    token_scopes,
)

__all__ = [
    "AGENT_SHARDS",
    "GRAPH_SHARDS",
    "PENGUIFLOW_SCOPE",
    "WATCH_SHARDS",
    "KeyLayout",
    "Keys",
    "a2a_keys",
    "a2a_scope",
    "adk_member",
    "agent_shard",
    "artifact_place",
    "binding_member",
    "call_key",
    "graph_shard",
    "graph_task",
    "is_pause_id",
    "manager_scope",
    "pause_id_of",
    "token_digest",
    "token_scopes",
]
