"""What leaves for the archive: read, kept until it is there, and marked."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import JOURNAL_BYTES, JOURNAL_PORTION, TaskKeys, Topic
from redis_state.transport.key_groups import LogKeys


class ArchiveScripts(ScriptRunner):
    """What leaves for the archive: read, kept until it is there, and marked."""

    @script
    def read_ended(
        self,
        keys: TaskKeys,
        *,
        least_ms: int,
        hold_ms: int,
        whole: bool,
        names: Sequence[bytes] = (),
        most_bytes: int = JOURNAL_BYTES,
        portion: int = JOURNAL_PORTION,
    ) -> PendingReply:
        """OK stamp record journal left | COUNTED stamp status | DENIED status | MISSING."""

    @script
    def mark_archived(self, keys: TaskKeys, *, stamp: str) -> PendingReply:
        """OK | STALE stamp | MISSING."""

    @script
    def hold_record(
        self,
        record: str,
        *,
        index: str | None,
        member: Topic,
        least_ms: int,
        hold_ms: int,
        whole: bool,
    ) -> PendingReply:
        """OK stamp now held fields | COUNTED stamp | MISSING."""

    @script
    def mark_record(
        self, record: str, *, index: str | None, member: Topic, stamp: str
    ) -> PendingReply:
        """OK | STALE stamp | MISSING."""

    @script
    def keep_rows(self, log: LogKeys, *, least_ms: int, n: int, hold_ms: int) -> PendingReply:
        """OK changed."""

    @script
    def release_record(
        self,
        record: str,
        *,
        index: str | None,
        member: Topic,
        beside: str,
        alone_ms: int,
        looks: bool,
    ) -> PendingReply:
        """OK left_ms stamp | STALE | MISSING."""

    @script
    def know_archive(self, known: str, *, id: str, instead: bool) -> PendingReply:  # noqa: A002
        """OK id."""

    @script
    def release_log(self, log: LogKeys, *, looks: bool) -> PendingReply:
        """OK left_ms | MISSING."""
