"""Durable streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.key_groups import StreamKeys


class StreamLimits(NamedTuple):
    """How much a stream keeps: rows, bytes (0: no limit) and producers."""

    max_rows: int
    max_bytes: int
    max_producers: int


class StreamScripts(ScriptRunner):
    """Durable streams."""

    @script
    def create_stream(
        self,
        keys: StreamKeys,
        *,
        stream_id: str,
        content_type: str,
        life: int | None,
        expires: int | None,
        closed: bool,
        about: bytes,
        creator: bytes,
        origin: bytes,
        first: str,
        hold_ms: int,
        data: bytes,
    ) -> PendingReply:
        """OK view | HELD view."""

    @script
    def append_stream(
        self,
        keys: StreamKeys,
        limits: StreamLimits,
        *,
        content_type: str,
        seq: str,
        producer: str,
        epoch: int,
        number: int,
        closing: bool,
        data: bytes,
    ) -> PendingReply:
        """OK last closed | COUNTED last closed number | MISSING | DENIED | HELD last | TAKEN type |
        LOST epoch | REFUSED what | GAP what expected | STALE seq | FULL.
        """

    @script
    def read_stream(
        self, keys: StreamKeys, *, after: str, most_rows: int, most_bytes: int, renew: bool
    ) -> PendingReply:
        """OK view rows | MISSING | DENIED view | GAP reason place."""

    @script
    def delete_stream(
        self,
        keys: StreamKeys,
        *,
        stream_id: str,
        forks: bytes,
        keep: bool,
    ) -> PendingReply:
        """OK | MISSING | AGAIN."""

    @script
    def copy_stream(
        self,
        keys: StreamKeys,
        *,
        stream_id: str,
        hold_ms: int,
        opening: bool,
        part: bytes,
        data: bytes,
        copied: Sequence[bytes],
    ) -> PendingReply:
        """OK view | COUNTED view | MISSING."""

    @script
    def add_fork(
        self,
        info: str,
        *,
        stream_id: str,
        fork: bytes,
        most: int,
    ) -> PendingReply:
        """OK | MISSING."""

    @script
    def claim_stream(
        self, created: str, *, path: str, ttl_ms: int, most: int, keep_ms: int
    ) -> PendingReply:
        """OK mark new | FULL."""

    @script
    def release_stream(self, created: str, *, path: str, mark: str) -> PendingReply:
        """OK removed."""
