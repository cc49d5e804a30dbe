"""Copies of keys: any key is read in parts, and written in parts elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.wire.resp import Argument


class CopyKeys(NamedTuple):
    """A key, what is known of its copy, and the copy while it is being made; all in one slot."""

    key: str
    copied: str
    copy: str


class CopyScripts(ScriptRunner):
    """Copies of keys: any key is read in parts, and written in parts elsewhere."""

    @script
    def read_part(self, keys: CopyKeys, *, after: bytes, limit: int) -> PendingReply:
        """OK type left_ms digest next about items | MISSING digest."""

    @script
    def write_part(
        self,
        keys: CopyKeys,
        *,
        kind: str,
        at: int,
        ttl_ms: int,
        keep_ms: int,
        digest: bytes,
        about: Sequence[bytes],
        items: Sequence[Argument],
    ) -> PendingReply:
        """OK count | AGAIN count."""

    @script
    def drop_copy(self, keys: CopyKeys, *, digest: bytes) -> PendingReply:
        """OK deleted | LOST."""
