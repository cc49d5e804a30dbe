"""Names within keys: digests of tokens, shards, scopes and members."""

from __future__ import annotations

import hashlib
import re
import zlib
from functools import lru_cache
from urllib.parse import quote

from redis_state.errors import InvalidField
from redis_state.transport.key_groups import QueueKeys, TaskIndexKeys
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


def token_scopes(session_id: str) -> tuple[str, ...]:
    """Return what the tokens of a session's pauses begin with, before the dot.

    As it is, and as a part of a URL.
    """
    scope = escape("session_id", session_id)
    return tuple(dict.fromkeys((scope, quote(scope, safe=""))))


def is_pause_id(text: str) -> bool:
    """Return whether a text is a pause's id: a token has no colon."""
    parts = text.rpartition(":") if type(text) is str else ("", "", "")
    return bool(_ESCAPED.fullmatch(parts[0]) and _DIGEST.fullmatch(parts[2]))


@lru_cache(maxsize=256)
def watch_key(namespace: str, shard: int) -> str:
    """Return the key of a shard's watch list."""
    return f"{namespace}:v1:{{/watch-{shard:02d}}}:watch"


@lru_cache(maxsize=256)
def task_index_keys(namespace: str, shard: int) -> TaskIndexKeys:
    """Return the keys of a shard's index of tasks."""
    watch = watch_key(namespace, shard)
    return TaskIndexKeys(watch, f"{namespace}:v1:{{/watch-{shard:02d}}}:tasks")


@lru_cache(maxsize=64)
def queue_keys(name: str, channel: str) -> QueueKeys:
    """Return the keys of a queue."""
    named = {part: f"{name}:{part}" for part in QueueKeys._fields[1:-1]}
    return QueueKeys(queue=name, channel=channel, **named)


def tag_of(key: str) -> str:
    """Return the part of a key that decides on its slot, in its braces."""
    _, brace, rest = key.partition("{")
    tag, end, _ = rest.partition("}")
    return f"{{{tag}}}" if brace and end and tag else f"{{{key}}}"


def a2a_scope(tenant: str, owner: str) -> str:
    """Return the hash tag of one owner's A2A tasks. Only scopes of A2A tasks have a slash."""
    return f"a2a/{escape('tenant', tenant)}/{escape('owner', owner)}"


def manager_scope(owner: str) -> str:
    """Return the hash tag of the A2A tasks that a task state manager keeps for an owner."""
    return f"a2a-manager/{escape('owner', owner)}"


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


def graph_task(session_id: str, task_id: str) -> str:
    """Return the name of a task of ours in LangGraph: of a thread, or of what a run is.

    A session's id may have any characters, so its length stands before it.
    """
    return f"{len(session_id)}:{session_id}/{task_id}"


def artifact_place(session_id: str) -> str:
    """Return the scope of a session's artifacts: 16 hexadecimal digits, which end their ids too.

    So an artifact is found by its id alone, without an index that could disagree.
    """
    return hashlib.sha256(escape("session_id", session_id).encode()).hexdigest()[:16]


def binding_member(context_id: str | None, task_id: str) -> str:
    """Return a binding's name in its trace. No context is not the empty text."""
    context = "-" if context_id is None else "=" + escape("context_id", context_id)
    return f"{context}:{escape('task_id', task_id)}"
