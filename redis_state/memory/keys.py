"""The owner of a memory: tenant, user and session, in a key that nobody else can have.

Nothing here guesses. A context without a session, or a key whose parts are ambiguous, has no
memory. Forgetting is better than showing one user the conversation of another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from redis_state.errors import InvalidField
from redis_state.memory.types import MemoryIsolation

_PARTS = 3
# No "/" is in the name of an agent: see `agent_messages`.
_OF_AGENT = re.compile(r"pydantic_ai/[^/]+/(.*)", re.DOTALL)
_HEARD = "redis_state steering told"


class CompositeKey(str):
    """A key whose parts are escaped: ``tenant:user:session`` with exactly two colons."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class MemoryKey:
    """Tenant, user and session of a memory.

    The names may hold any character: `composite` escapes. Errors: InvalidField names a part that
    is not text, or an empty session.
    """

    tenant_id: str
    user_id: str
    session_id: str

    def __post_init__(self) -> None:
        """Refuse what names nobody."""
        for name in ("tenant_id", "user_id", "session_id"):
            if not isinstance(getattr(self, name), str):
                raise InvalidField(name, "text is needed")
        if not self.session_id.strip():
            raise InvalidField("session_id", "must not be empty")

    def composite(self) -> CompositeKey:
        """Write the key. For names without ``:`` and ``%`` it is PenguiFlow's own."""
        parts = (self.tenant_id, self.user_id, self.session_id)
        return CompositeKey(":".join(map(_escape, parts)))


def resolve_key(
    tool_context: Mapping[str, Any] | None,
    isolation: MemoryIsolation | None = None,
    *,
    ephemeral: MemoryKey | None = None,
) -> MemoryKey | None:
    """Find the key in a tool context; None if it names no session, so nothing is remembered.

    Tenant and user are ``default`` and ``anonymous`` where the context names none. ``ephemeral``
    is used for a context without a session, unless the isolation requires an explicit key.
    """
    isolation = isolation or MemoryIsolation()
    context = tool_context or {}
    session = _text(_at(context, isolation.session_key))
    if not session:
        return None if isolation.require_explicit_key else ephemeral
    tenant = _text(_at(context, isolation.tenant_key), "default")
    user = _text(_at(context, isolation.user_key), "anonymous")
    return MemoryKey(tenant, user, session)


def read_composite(key: object) -> CompositeKey:
    """Take a key as a host hands it over.

    A host may have joined its names by ``:`` without escaping, so more than two colons could be
    any of several sessions. Errors: InvalidField then; pass a `MemoryKey` instead.
    """
    if isinstance(key, MemoryKey):
        return key.composite()
    if isinstance(key, CompositeKey):
        return key
    if not isinstance(key, str):
        raise InvalidField("key", f"text is needed, not {type(key).__name__}")
    parts = key.split(":")
    if len(parts) > _PARTS:
        raise InvalidField("key", "has more than two colons, so it is ambiguous: pass a MemoryKey")
    if not parts[-1].strip():
        raise InvalidField("key", "names no session")
    return CompositeKey(":".join(map(_escape, parts)))


def agent_messages(agent: str, session_id: str) -> str:
    """Return the key of the messages that a session has with an agent of pydantic-ai.

    ``agent`` is a name without "/".
    """
    return f"pydantic_ai/{agent}/{session_id}"


def heard_steering(session_id: str, task_id: str) -> str:
    """Return the key under which PenguiFlow's session notes how far it heard a task's steering."""
    return json.dumps([_HEARD, session_id, task_id])


def session_of(key: str) -> str | None:
    """Return the session of a key that `agent_messages` or `heard_steering` made; else None."""
    found = _OF_AGENT.fullmatch(key)
    if found is not None:
        return found[1]
    if not key.startswith(json.dumps([_HEARD])[:-1]):
        return None
    try:
        match json.loads(key):
            case [str(), str(session_id), str()]:
                return session_id
            case _:
                return None
    except ValueError:
        return None


def _escape(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")


def _at(context: Mapping[str, Any], path: str) -> Any:
    found: Any = context
    for part in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = cast("Mapping[str, Any]", found).get(part)
    return found


def _text(value: Any, missing: str = "") -> str:
    return missing if value is None else str(value).strip()
