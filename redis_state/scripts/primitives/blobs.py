"""Blobs: upload in chunks, commit within limits, read, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Topic
from redis_state.transport.key_groups import BlobKeys


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a scope may hold, and a trace in it."""

    count: int
    bytes: int
    trace_count: int
    trace_bytes: int


def _limits(limits: tuple[int, int, int, int]) -> _Limits:
    return _Limits(*limits)


class BlobScripts(ScriptRunner):
    """Blobs: upload in chunks, commit within limits, read, delete."""

    @script
    def stage_chunk(self, upload: str, *, number: int, data: bytes, ttl_ms: int) -> PendingReply:
        """OK chunks."""

    @script
    def commit_blob(
        self,
        keys: BlobKeys,
        upload: str,
        *,
        blob_id: str,
        ref: bytes,
        size: int,
        chunks: int,
        trace: Topic,
        ttl_ms: int,
        write: str = "",
        reference_ttl_ms: int | None = None,
        strategy: str,
        limits: Annotated[tuple[int, int, int, int], _limits],
        victims: Sequence[str],
    ) -> PendingReply:
        """OK ref | AGAIN id... | MISSING. ``limits``: count, bytes, a trace's count, bytes."""

    @script
    def keep_reference(
        self,
        keys: BlobKeys,
        *,
        blob_id: str,
        write: str,
        reference_ttl_ms: int,
        again: bool = False,
    ) -> PendingReply:
        """OK kept | MISSING."""

    @script
    def touch_blob(self, keys: BlobKeys, *, blob_id: str) -> PendingReply:
        """OK recorded."""

    @script
    def begin_touch_blob(self, keys: BlobKeys, *, blob_id: str) -> asyncio.Future[Any]:
        """Queue `touch_blob` at once, before whatever the caller sends next."""

    @script
    def list_blobs(self, keys: BlobKeys) -> PendingReply:
        """OK ids."""

    @script
    def delete_blob(self, keys: BlobKeys, *, blob_id: str) -> PendingReply:
        """OK deleted left."""

    @script
    def drop_unlisted_blob(self, keys: BlobKeys, *, blob_id: str) -> PendingReply:
        """OK deleted."""

    @script
    def add_member(self, index: str, *, member: str, ttl_ms: int) -> PendingReply:
        """OK recorded."""

    @script
    def begin_add_member(self, index: str, *, member: str, ttl_ms: int) -> asyncio.Future[Any]:
        """Queue `add_member` at once, before whatever the caller sends next."""
