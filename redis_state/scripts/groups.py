"""Groups of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redis_state.scripts.runner import (
    PendingReply,
    ScriptRunner,
    flat,
    raw,
)


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """The keys of one group of tasks; all in its session's slot."""

    group_id: str
    group: str
    groups: str
    names: str

    @property
    def all(self) -> tuple[str, ...]:
        """List them."""
        return self.group, self.groups, self.names


class GroupScripts(ScriptRunner):
    """Groups of tasks."""

    def create_group(
        self,
        keys: GroupKeys,
        fields: Mapping[str, bytes],
        *,
        alias: bytes,
        instead_of: str | None,
        write: str,
        ttl_ms: int,
    ) -> PendingReply:
        """OK group_id new."""
        return self._run(
            "create_group",
            keys.all,
            (
                raw(keys.group_id),
                alias,
                int(instead_of is not None),
                raw(instead_of or ""),
                write,
                ttl_ms,
                *flat(fields),
            ),
        )

    def join_group(self, keys: GroupKeys, *, task_id: str, write: str, ttl_ms: int) -> PendingReply:
        """OK new | DENIED status | MISSING."""
        return self._run(
            "join_group",
            (keys.group, keys.groups),
            (raw(keys.group_id), raw(task_id), write, ttl_ms),
        )

    def finish_member(
        self,
        keys: GroupKeys,
        *,
        task_id: str,
        outcome: str,
        patch_id: str | None,
        call: str,
        ttl_ms: int,
        ended_ttl_ms: int,
    ) -> PendingReply:
        """OK status completed | DENIED status | MISSING."""
        return self._run(
            "finish_member",
            (keys.group, keys.groups),
            (
                raw(keys.group_id),
                raw(task_id),
                outcome,
                int(patch_id is not None),
                raw(patch_id or ""),
                raw(call),
                ttl_ms,
                ended_ttl_ms,
            ),
        )

    def close_group(
        self,
        keys: GroupKeys,
        *,
        target: str,
        alias: bytes,
        call: str,
        ttl_ms: int,
        ended_ttl_ms: int,
    ) -> PendingReply:
        """OK status completed | DENIED status | MISSING."""
        return self._run(
            "close_group",
            keys.all,
            (raw(keys.group_id), target, alias, raw(call), ttl_ms, ended_ttl_ms),
        )
