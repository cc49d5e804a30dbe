"""Blobs: upload in chunks, commit within limits, read, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    raw,
    topic_bytes,
)
from redis_state.transport.keys import BlobKeys


class BlobScripts(ScriptRunner):
    """Blobs: upload in chunks, commit within limits, read, delete."""

    def stage_chunk(self, upload: str, *, number: int, data: bytes, ttl_ms: int) -> PendingReply:
        """OK chunks."""
        return self._run("stage_chunk", (upload,), (number, data, ttl_ms))

    def commit_blob(
        self,
        keys: BlobKeys,
        upload: str,
        *,
        blob_id: str,
        ref: bytes,
        size: int,
        chunks: int,
        trace: str | None,
        ttl_ms: int,
        strategy: str,
        limits: tuple[int, int, int, int],
        victims: Sequence[str],
    ) -> PendingReply:
        """OK ref | AGAIN id... | MISSING. ``limits``: count, bytes, a trace's count, bytes."""
        places = [keys.blob(victim) for victim in victims]
        return self._run_once(
            "commit_blob",
            (upload, keys.blob(blob_id), keys.expiry, keys.use, keys.about, *places),
            (
                raw(blob_id),
                ref,
                size,
                chunks,
                topic_bytes(trace),
                ttl_ms,
                strategy,
                *limits,
                *map(raw, victims),
            ),
        )

    def touch_blob(self, keys: BlobKeys, *, blob_id: str) -> PendingReply:
        """OK noted."""
        return self._run("touch_blob", (keys.use,), (raw(blob_id),))

    def list_blobs(self, keys: BlobKeys) -> PendingReply:
        """OK ids."""
        return self._run("list_blobs", (keys.expiry,), ())

    def delete_blob(self, keys: BlobKeys, *, blob_id: str) -> PendingReply:
        """OK deleted left."""
        return self._run_once(
            "delete_blob", (keys.blob(blob_id), keys.expiry, keys.use, keys.about), (raw(blob_id),)
        )

    def note_member(self, index: str, *, member: str, ttl_ms: int) -> PendingReply:
        """OK noted."""
        return self._run("note_member", (index,), (raw(member), ttl_ms))

    def begin_note_member(self, index: str, *, member: str, ttl_ms: int) -> asyncio.Future[Any]:
        """Queue `note_member` at once, before whatever the caller sends next."""
        return self._begin("note_member", (index,), (raw(member), ttl_ms))
