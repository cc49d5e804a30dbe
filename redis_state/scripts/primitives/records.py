"""Records: versioned sets of fields, and a host's saves of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from redis_state.scripts.binding import remembering, script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Expected, Fence, Member, TaskKeys, Topic, expecting

# What a host's save of a task writes, in the order in which it is given.
TASK_FIELDS: tuple[str, ...] = (
    "status",
    "priority",
    "document",
    "result",
    "error",
    "progress",
    "updated",
)


class RecordScripts(ScriptRunner):
    """Records: versioned sets of fields, and a host's saves of tasks."""

    @script
    def save_record(
        self,
        record: str,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        expected: Annotated[int, expecting],
        index: str | None = None,
        member: Topic = None,
        fence: Fence | None = None,
    ) -> PendingReply:
        """OK version | STALE version write | LOST epoch."""

    @script
    def put_record(
        self,
        record: str,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        only_if_there: bool = False,
        index: str | None = None,
        member: Topic = None,
        fence: Fence | None = None,
    ) -> PendingReply:
        """OK version | MISSING | LOST epoch."""

    @script
    def save_worker(
        self,
        record: str,
        *,
        index: str,
        served: str,
        write: str,
        ttl_ms: int,
        member: Member,
        document: bytes,
        remember_ms: int,
        most: int,
        names: Sequence[str],
    ) -> PendingReply:
        """OK version."""

    # Tasks at work are saved again and again.
    @remembering(behind="write", most=4096)
    def save_task(
        self,
        keys: TaskKeys,
        values: Sequence[bytes],
        *,
        write: str,
        ttl_ms: int,
        finished: bool,
        updated_at_us: int,
    ) -> PendingReply:
        """OK version | STALE version. The values are those of `TASK_FIELDS`."""

    @script
    def delete_record(
        self, record: str, *, index: str | None, member: Topic, only_if_gone: bool
    ) -> PendingReply:
        """OK deleted."""

    @script
    def save_listed(
        self,
        record: str,
        fields: Mapping[str, bytes],
        *,
        indexes: Sequence[str],
        write: str,
        ttl_ms: int,
        member: Member,
        listed: int,
        expected: Expected = None,
    ) -> PendingReply:
        """OK version | STALE version write. The first ``listed`` indexes list it, one at least."""

    @script
    def unlist_member(self, index: str, *, member: Member, expiry: bytes) -> PendingReply:
        """OK removed."""

    @script
    def drop_listed(self, record: str, *, indexes: Sequence[str], member: Member) -> PendingReply:
        """OK deleted."""
