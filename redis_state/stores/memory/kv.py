"""Key-value entries of a session or a task, on memory states, in PenguiFlow's own format.

PenguiFlow's facade and this one read each other's entries. This one compares before it sets, so no
process undoes another's write. It keeps a large value as long as its entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from redis_state import limits
from redis_state.errors import (
    CorruptState,
    InvalidField,
    OutcomeUnknown,
    RedisStateError,
    VersionConflict,
)
from redis_state.models.version import Version
from redis_state.primitives.record import stored
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.stores.artifacts import ArtifactStore
from redis_state.stores.base import Base
from redis_state.stores.memory.kv_entry import (
    MAX_INLINE_BYTES,
    REDACT_KEYS,
    Entry,
    KVScope,
    Owner,
    build_entry,
    canonical_text,
    hash_text,
    is_live,
    redact,
)
from redis_state.stores.memory.large_values import MIME, LargeValues
from redis_state.stores.memory.memory import MemoryStore
from redis_state.stores.optimistic import retry_on_conflict

Decide: TypeAlias = Callable[[Any, bool], Any]
_UNCHANGED = object()


@dataclass(frozen=True, slots=True)
class KVValue:
    """A value and the etag of the write that made it."""

    value: Any
    etag: str


class KVStore:
    """Makes facades, one for each place that a tool works in."""

    def __init__(self, base: Base, memory: MemoryStore, artifacts: ArtifactStore) -> None:
        self._parts = base, memory, artifacts

    def bind(
        self,
        tool_context: Mapping[str, Any],
        *,
        max_inline_bytes: int = MAX_INLINE_BYTES,
        redact_keys: frozenset[str] = REDACT_KEYS,
    ) -> SessionKV:
        """Give the entries of a tool context: tenant, user, session, task, trace, as PenguiFlow's.

        No I/O. Errors: InvalidField names what is missing.
        """
        return SessionKV(
            *self._parts,
            Owner.of(tool_context),
            max_inline_bytes=max_inline_bytes,
            redact_keys=redact_keys,
        )


class SessionKV:
    """Get, set, patch and delete entries. Every write compares before it sets, and tries again.

    ``scope`` is the session (kept `memory_ttl` after a write) or the task (an hour). Values are
    JSON; what stands under the name of a secret is redacted. A write that loses its race for
    `call_timeout_s` gives up with VersionConflict; nothing is written then.
    """

    def __init__(
        self,
        base: Base,
        memory: MemoryStore,
        artifacts: ArtifactStore,
        owner: Owner,
        *,
        max_inline_bytes: int,
        redact_keys: frozenset[str],
    ) -> None:
        self._base = base
        self._memory = memory
        self._owner = owner
        self._large = LargeValues(base, artifacts, owner)
        self._max_inline_bytes = limits.count("max_inline_bytes", max_inline_bytes, least=0)
        self._redact_keys = redact_keys

    async def get(
        self, key: str, *, scope: KVScope = "session", namespace: str | None = None
    ) -> Any:
        """Return a value, or None."""
        found = await self.get_entry(key, scope=scope, namespace=namespace)
        return None if found is None else found.value

    async def get_entry(
        self, key: str, *, scope: KVScope = "session", namespace: str | None = None
    ) -> KVValue | None:
        """Return a value with its etag, or None. Errors: CorruptState if a large value is gone."""
        place = self._owner.key(key, scope=scope, namespace=namespace)

        async def attempt() -> KVValue | None:
            entry, version = await self._load(place)
            if entry is None or not is_live(entry, scope):
                return None
            value = await self._value_or_moved(place, entry, version)
            return KVValue(value, str(entry.get("etag") or ""))

        return await retry_on_conflict(attempt, timeout_s=self._base.settings.call_timeout_s)

    async def get_or_init(
        self, key: str, default: Any, *, scope: KVScope = "session", namespace: str | None = None
    ) -> Any:
        """Return a value; of all callers that find none, the first one's default becomes it."""
        found = await self.get_entry(key, scope=scope, namespace=namespace)
        if found is not None:
            return found.value

        def decide(value: Any, there: bool) -> Any:  # noqa: FBT001 - one signature for all
            del value
            return _UNCHANGED if there else default

        return (await self._change(key, scope, namespace, decide)).value

    async def set(
        self,
        key: str,
        value: Any,
        *,
        scope: KVScope = "session",
        namespace: str | None = None,
        expected_etag: str | None = None,
    ) -> KVValue:
        """Set a value and return it, redacted, with its etag.

        Errors: VersionConflict if an etag was expected (``""``: no value) and there is another.
        """

        def decide(old: Any, there: bool) -> Any:  # noqa: FBT001 - one signature for all
            del old, there
            return value

        return await self._change(
            key, scope, namespace, decide, expected_etag=expected_etag, hydrate=False
        )

    async def patch(
        self,
        key: str,
        patch: Mapping[str, Any],
        *,
        scope: KVScope = "session",
        namespace: str | None = None,
    ) -> Any:
        """Set some names of an object and return all of it; no other process's names are lost.

        Errors: InvalidField if there is a value that is no object.
        """
        if not isinstance(cast("Any", patch), Mapping):
            raise InvalidField("patch", "a mapping is needed")

        def decide(value: Any, there: bool) -> Any:  # noqa: FBT001 - one signature for all
            del there
            if value is not None and not isinstance(value, Mapping):
                raise InvalidField("patch", "the value that is there is no object")
            return {**cast("Mapping[str, Any]", value or {}), **patch}

        return (await self._change(key, scope, namespace, decide)).value

    async def change(
        self,
        key: str,
        change: Callable[[Any], Any],
        *,
        scope: KVScope = "session",
        namespace: str | None = None,
    ) -> KVValue:
        """Set what a function makes of the value, None if there is none; it may be called again.

        Atomic: the value it was given is the one that its result replaces.
        """

        def decide(value: Any, there: bool) -> Any:  # noqa: FBT001 - one signature for all
            del there
            return change(value)

        return await self._change(key, scope, namespace, decide)

    async def delete(
        self,
        key: str,
        *,
        scope: KVScope = "session",
        namespace: str | None = None,
        expected_etag: str | None = None,
    ) -> bool:
        """Delete a value; return whether there was one. Its mark goes after `kv_tombstone_ttl`.

        Errors: VersionConflict if an etag was expected and there is another.
        """
        place = self._owner.key(key, scope=scope, namespace=namespace)

        async def attempt() -> bool | VersionConflict:
            entry, version = await self._load(place)
            live = entry if is_live(entry, scope) else None
            if refused := _refused(place, live, expected_etag):
                return refused
            if live is None:
                return False
            mark = build_entry(None, scope=scope, rules=self._redact_keys)
            await self._memory.save(place, mark, expected_version=version)
            await self._large.drop(entry)
            return True

        done = await retry_on_conflict(attempt, timeout_s=self._base.settings.call_timeout_s)
        if isinstance(done, VersionConflict):
            raise done
        return done

    async def _change(
        self,
        key: str,
        scope: KVScope,
        namespace: str | None,
        decide: Decide,
        *,
        expected_etag: str | None = None,
        hydrate: bool = True,
    ) -> KVValue:
        place = self._owner.key(key, scope=scope, namespace=namespace)

        async def attempt() -> KVValue | VersionConflict:
            entry, version = await self._load(place)
            live = entry if is_live(entry, scope) else None
            if refused := _refused(place, live, expected_etag):
                return refused
            old = await self._value_or_moved(place, live, version) if live and hydrate else None
            new = decide(old, live is not None)
            if new is _UNCHANGED:
                return KVValue(old, str((live or {}).get("etag") or ""))
            return await self._replace(place, entry, version, redact(new, self._redact_keys), scope)

        done = await retry_on_conflict(attempt, timeout_s=self._base.settings.call_timeout_s)
        if isinstance(done, VersionConflict):
            raise done
        return done

    async def _replace(
        self, place: str, old: Entry | None, version: Version, value: Any, scope: KVScope
    ) -> KVValue:
        written = canonical_text(value)
        plain = json.loads(written)
        found: Entry = {
            "inline": plain,
            "hash": hash_text(written),
            "artifact_ref": None,
            "mime_type": MIME,
        }
        entry = build_entry(found, scope=scope, rules=self._redact_keys)
        if len(written.encode()) > max(0, self._max_inline_bytes):
            found["inline"] = None
            found["artifact_ref"] = await self._large.keep(place, entry["etag"], written, scope)
        elif codec.encode_reporting(entry)[1]:
            # JSON holds it, and our documents would hold something in its place.
            raise InvalidField("value", "it is nested too deeply, or a number is too large")
        try:
            await self._memory.save(place, entry, expected_version=version)
        except OutcomeUnknown:
            raise  # its entry may be there
        except RedisStateError:
            await self._large.drop(entry)
            raise
        await self._large.drop(old)
        return KVValue(plain, entry["etag"])

    async def _load(self, place: str) -> tuple[Entry | None, Version]:
        """Return an entry and the version of its record: what is unreadable can be replaced."""
        record = stored(await self._base.fetch(self._base.keys.memory(place)))
        if record is None:
            return None, Version(0)
        data = record.fields.get("document", b"")
        return self._base.attempt(place, "kv", data, lambda: as_object(data)), record.version

    async def _value_or_moved(self, place: str, entry: Entry, version: Version) -> Any:
        try:
            return await self._large.value(place, entry)
        except CorruptState:
            # A large value goes with the entry that another writer replaces meanwhile.
            _, now = await self._load(place)
            if now != version:
                raise VersionConflict(place, expected=version, actual=now) from None
            raise


def _refused(place: str, live: Entry | None, expected_etag: str | None) -> VersionConflict | None:
    if expected_etag is None:
        return None
    etag = str((live or {}).get("etag") or "")
    if etag == expected_etag:
        return None
    return VersionConflict(place, expected=expected_etag, actual=etag)
