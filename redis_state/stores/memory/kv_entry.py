"""The format of key-value entries, as PenguiFlow's own facade reads and writes them."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from redis_state.errors import InvalidField
from redis_state.settings import Settings
from redis_state.stores.base import ms

KVScope = Literal["session", "task"]
Entry = dict[str, Any]

PREFIX = "kv:v1"
TASK_LIFE = timedelta(hours=1)
MAX_INLINE_BYTES = 8192
REDACTED = "<redacted>"
REDACT_KEYS = frozenset(
    {
        "token",
        "access_token",
        "refresh_token",
        "authorization",
        "api_key",
        "password",
        "secret",
        "client_secret",
    }
)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose entries are meant: a session of a user, and the task and trace that ask."""

    tenant_id: str
    user_id: str
    session_id: str
    task_id: str
    trace_id: str
    tool_name: str | None = None

    @classmethod
    def of(cls, tool_context: Mapping[str, Any]) -> Owner:
        """Read a tool context. Errors: InvalidField names what is missing or cannot be used."""
        names = ("tenant_id", "user_id", "session_id", "task_id", "trace_id")
        values = {name: _needed(name, tool_context.get(name)) for name in names}
        for name in ("tenant_id", "user_id"):
            # PenguiFlow's keys join them unescaped: these could be another tenant's.
            if ":" in values[name]:
                raise InvalidField(name, "must not contain a colon")
        tool = tool_context.get("_current_tool_name")
        named = isinstance(tool, str) and tool.strip()
        return cls(**values, tool_name=str(tool).strip() if named else None)

    def key(self, key: str, *, scope: KVScope, namespace: str | None) -> str:
        """Return an entry's id as PenguiFlow makes it."""
        name = _needed("key", key)
        if scope not in ("session", "task"):
            raise InvalidField("scope", "must be session or task")
        if namespace is not None and namespace.strip():
            space = namespace.strip()
        else:
            space = f"tool:{self.tool_name}" if self.tool_name else "unknown"
        of = f"{PREFIX}:{self.tenant_id}:{self.user_id}:{self.session_id}"
        part = "session" if scope == "session" else f"task:{self.task_id}"
        return f"{of}:{part}:{space}:{name}"


def lifetime_ms(key: str, state: Mapping[str, Any], settings: Settings) -> int:
    """Return how long a memory state is kept, for every writer.

    An entry with an expiry ends with it, and a deleted one after a grace time.
    """
    lives = [ms(settings.memory_ttl)]
    if key.startswith(f"{PREFIX}:"):
        if state.get("deleted") is True:
            lives.append(ms(settings.kv_tombstone_ttl))
        ends = _expiry(state)
        if ends is not None:
            lives.append(max(1, ms(max(ends - datetime.now(UTC), timedelta()))))
    return min(lives)


def is_live(entry: Mapping[str, Any] | None, scope: KVScope) -> bool:
    """Return whether an entry stands for a value: not deleted, and of a task not expired."""
    if entry is None or entry.get("deleted"):
        return False
    ends = _expiry(entry) if scope == "task" else None
    return ends is None or datetime.now(UTC) < ends


def build_entry(value: Mapping[str, Any] | None, *, scope: KVScope, rules: frozenset[str]) -> Entry:
    """Make an entry of a value's place; None makes the mark of a deleted one."""
    now = datetime.now(UTC)
    entry: Entry = {
        "schema_version": 1,
        "etag": uuid.uuid4().hex,
        "updated_at": now.isoformat(),
        "deleted": value is None,
        "value": value,
        "redaction": {"applied": True, "rules": sorted(rules)},
    }
    if scope == "task":
        entry["expires_at"] = (now + TASK_LIFE).isoformat()
    return entry


def canonical_text(value: Any) -> str:
    """Write a value as the text that is hashed. Errors: InvalidField if JSON cannot hold it."""
    try:
        written = json.dumps(
            value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
        )
        written.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidField("value", f"JSON cannot hold it: {type(error).__name__}") from None
    return written


def hash_text(written: str) -> str:
    """Return a value's etag, made of its content."""
    return hashlib.sha256(written.encode()).hexdigest()


def redact(value: Any, keys: frozenset[str]) -> Any:
    """Copy a value without what stands under the name of a secret. Models become objects."""
    try:
        return _redact(value, keys)
    except RecursionError:
        raise InvalidField("value", "JSON cannot hold it: it is nested too deeply") from None


def _redact(value: Any, keys: frozenset[str]) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        value = dump(mode="json")
    if isinstance(value, Mapping):
        found = cast("Mapping[object, Any]", value)
        return {
            str(name): REDACTED if str(name).lower() in keys else _redact(item, keys)
            for name, item in found.items()
        }
    if isinstance(value, list | tuple):
        return [_redact(item, keys) for item in cast("list[Any]", value)]
    return value


def _expiry(entry: Mapping[str, Any]) -> datetime | None:
    ends = entry.get("expires_at")
    if not isinstance(ends, str):
        return None
    try:
        moment = datetime.fromisoformat(ends)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _needed(field: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidField(field, "text that is not blank is needed")
    return value.strip()
