"""The shape of a key: ``<namespace>:v1:{<scope>}:<kind>[:<id>]``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from redis_state.errors import InvalidField
from redis_state.transport.key_groups import LogKeys, log_keys
from redis_state.transport.key_text import LONGEST_REMEMBERED, escape


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The shape of every key under one namespace."""

    namespace: str = "rs"

    # Pub/sub ignores databases: without the number two databases would share their channels.
    database: int = 0

    def __post_init__(self) -> None:
        """Refuse a namespace that could break out of its place in a key."""
        name = self.namespace
        if not name or not name.isprintable() or any(c in "{}*?[]\\: " for c in name):
            raise InvalidField("namespace", "needs text without spaces, braces, colons, wildcards")

    def _key(self, field: str, scope: str, kind: str) -> str:
        # Each call names keys of the same few scopes. What is no text is refused by its field.
        if type(scope) is str and len(scope) <= LONGEST_REMEMBERED:
            return _slot(self.namespace, scope) + kind
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


@lru_cache(maxsize=4096)
def _slot(namespace: str, scope: str) -> str:
    return f"{namespace}:v1:{{{escape('', scope)}}}:"
