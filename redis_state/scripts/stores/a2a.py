"""Tasks of A2A servers: versions, events, lists, leases and push configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.key_groups import A2ABooks, A2AKeys


class A2AScripts(ScriptRunner):
    """Tasks of A2A servers: versions, events, lists, leases and push configurations."""

    @script
    def write_a2a_task(
        self,
        keys: A2AKeys,
        fields: Mapping[str, bytes],
        *,
        rule: str,
        write: bytes,
        row: bytes,
        state: str,
        phase: str,
        place: bytes,
        ttl_ms: int,
        max_rows: int,
        owner: str = "",
        lease_ms: int = 0,
        keep_ms: int = 0,
        epoch: int | None = None,
        announce: bool = False,
        messages: Sequence[bytes] = (),
        parts: Sequence[bytes] = (),
    ) -> PendingReply:
        """OK version at epoch | TAKEN version at epoch row | STALE version at | DENIED state |
        HELD epoch | MISSING.
        """

    @script
    def read_a2a_task(
        self, keys: A2AKeys, *, messages: int = 0, whole: bool = False
    ) -> PendingReply:
        """OK owner epoch left_ms history artifacts fields | MISSING. -1 reads all messages."""

    @script
    def list_a2a_tasks(
        self,
        books: A2ABooks,
        tasks: Sequence[str] = (),
        *,
        prefix: bytes,
        since: bytes,
        after: bytes,
        size: int,
        most_bytes: int,
        whole: bool,
        settle: bool = False,
        known: Sequence[bytes] = (),
    ) -> PendingReply:
        """OK total others more task... | AGAIN id..."""

    @script
    def drop_a2a_task(
        self, keys: A2AKeys, *, write: str, before_us: int | None, tombstone_ms: int
    ) -> PendingReply:
        """OK version | STALE | MISSING."""

    @script
    def name_a2a_stream(self, keys: A2AKeys, *, stream: str) -> PendingReply:
        """OK | MISSING."""

    @script
    def put_a2a_config(
        self, keys: A2AKeys, *, name: str, config: bytes, most: int, ttl_ms: int
    ) -> PendingReply:
        """OK number | DENIED count | MISSING."""

    @script
    def drop_a2a_configs(self, keys: A2AKeys, *, name: str) -> PendingReply:
        """OK deleted. Without a name all are."""
