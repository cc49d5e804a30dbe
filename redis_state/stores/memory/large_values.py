"""Large values of key-value entries: kept apart from their entries, and as long as they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from redis_state.errors import BackendError, CorruptState
from redis_state.primitives.blob import Blobs, Quota
from redis_state.serialization import codec
from redis_state.stores.artifacts import ArtifactStore
from redis_state.stores.base import Base, ms
from redis_state.stores.memory.kv_entry import TASK_LIFE, Entry, KVScope, Owner
from redis_state.transport.keys import artifact_place

_NAMESPACE = "session_kv"
MIME = "application/json"
_LARGEST = 50 * 1024 * 1024
# The value is stored before its entry, and must not go before it.
_MARGIN_MS = 60_000


class LargeValues:
    """The large values of one owner's entries, each as an artifact."""

    def __init__(self, base: Base, artifacts: ArtifactStore, owner: Owner) -> None:
        self._base = base
        self._artifacts = artifacts
        self._owner = owner

    async def value(self, place: str, entry: Entry) -> Any:
        """Return the value of an entry. Errors: CorruptState if it is gone or cannot be read."""
        value = _part(entry, "value")
        ref = _part(value, "artifact_ref")
        if value.get("inline") is not None or not ref:
            return value.get("inline")
        artifact_id = str(ref.get("id"))
        data = await self._artifacts.get(artifact_id)
        if data is None:
            raise CorruptState(place, "its large value is gone")
        try:
            return json.loads(data)
        except ValueError as error:
            reason = type(error).__name__
            raise CorruptState(place, f"its large value cannot be read: {reason}") from None

    async def keep(self, place: str, etag: str, written: str, scope: KVScope) -> dict[str, Any]:
        """Keep a large value apart, under an id that no other write has, as long as its entry."""
        owner, data = self._owner, written.encode()
        at = artifact_place(f"{place}:{etag}")
        settings = self._base.settings
        life_ms = ms(settings.memory_ttl if scope == "session" else TASK_LIFE) + _MARGIN_MS
        blobs = self._blobs(at, life_ms)
        upload = blobs.begin(trace=None)
        await blobs.add(upload, data)
        digest = await blobs.finish(upload)
        artifact_id = f"{_NAMESPACE}_{hashlib.sha256(etag.encode()).hexdigest()[:20]}{at}"
        ref: dict[str, Any] = {
            "id": artifact_id,
            "mime_type": MIME,
            "size_bytes": len(data),
            "filename": "session_kv.json",
            "sha256": digest,
            "scope": {
                "tenant_id": owner.tenant_id,
                "user_id": owner.user_id,
                "session_id": owner.session_id,
                "trace_id": owner.trace_id,
            },
            "namespace": _NAMESPACE,
            "source": {"kv_hash": digest, "kv_etag": etag},
        }
        await blobs.commit(upload, artifact_id, codec.encode(ref))
        return ref

    async def drop(self, entry: Entry | None) -> None:
        """Delete the large value that only this entry names. PenguiFlow's own may be shared.

        What was done to the entry stands: one that cannot be deleted now goes when it expires.
        """
        ref = _part(_part(entry, "value"), "artifact_ref")
        etag = _part(ref, "source").get("kv_etag")
        if entry is not None and etag is not None and etag == entry.get("etag"):
            artifact_id = str(ref.get("id"))
            with suppress(BackendError):
                await self._blobs(artifact_id[-16:], _MARGIN_MS).delete(artifact_id)

    def _blobs(self, at: str, ttl_ms: int) -> Blobs:
        quota = Quota(
            ttl_ms=ttl_ms,
            max_blob_bytes=_LARGEST,
            max_bytes=_LARGEST,
            max_count=1,
            max_trace_bytes=_LARGEST,
            max_trace_count=1,
            strategy="none",
        )
        return Blobs(self._base.scripts, self._base.keys.artifacts(at), quota)


def _part(entry: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    part = (entry or {}).get(name)
    return cast("Mapping[str, Any]", part) if isinstance(part, Mapping) else {}
