"""Records: versioned sets of fields, and a host's saves of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from redis_state.scripts.runner import (
    SCRIPTS,
    Fence,
    PendingReply,
    ScriptRunner,
    expecting,
    flat,
    topic_bytes,
)
from redis_state.scripts.tasks import TaskKeys
from redis_state.transport.keys import LONGEST_REMEMBERED
from redis_state.transport.resp import PreparedScript, prepare

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

    def save_record(
        self,
        record: str,
        fields: Mapping[str, bytes],
        *,
        write: str,
        ttl_ms: int,
        expected: int | Literal["+"] | None = None,
        index: str | None = None,
        member: str | None = None,
        fence: Fence | None = None,
    ) -> PendingReply:
        """OK version | STALE version write | LOST epoch."""
        return self._run(
            "save_record",
            (record, index or record, fence.lease if fence else record),
            (
                fence.mark if fence else b"",
                "+" if expected == "+" else expecting(expected),
                write,
                ttl_ms,
                topic_bytes(member) if index else b"",
                *flat(fields),
            ),
        )

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
        known = len(keys.task_id) <= LONGEST_REMEMBERED
        prepare_call = _prepared_save if known else _prepare_save
        prepared = prepare_call(keys, ttl_ms, int(finished))
        return self._run_prepared(prepared, (write, updated_at_us, *values))

    def delete_record(
        self, record: str, *, index: str | None, member: str | None, only_if_gone: bool
    ) -> PendingReply:
        """OK deleted."""
        return self._run_once(
            "delete_record",
            (record, index or record),
            (topic_bytes(member) if index else b"", int(only_if_gone)),
        )


def _prepare_save(keys: TaskKeys, ttl_ms: int, finished: int) -> PreparedScript:
    """Prepare all but the values."""
    given = (topic_bytes(keys.task_id), ttl_ms, finished)
    return prepare(SCRIPTS["save_task"], (keys.task, keys.tasks), given)


# Tasks at work are saved again and again.
_prepared_save = lru_cache(maxsize=4096)(_prepare_save)
