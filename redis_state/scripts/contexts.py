"""A session's context and its patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state.scripts.runner import (
    Announcement,
    PendingReply,
    ScriptRunner,
    expecting,
    flat,
    pairs,
    raw,
)
from redis_state.transport.keys import LogKeys


@dataclass(frozen=True, slots=True)
class PatchKeys:
    """The keys of one patch of a session's context; all in its session's slot."""

    patch_id: str
    task_id: str
    context: str
    patch: str
    patches: str

    def with_log(self, log: LogKeys) -> tuple[str, ...]:
        """List them with those of the updates that tell of it."""
        told = (log.rows, log.ids, log.topic(self.task_id), log.channel)
        return (self.context, self.patch, self.patches, *told)


class ContextScripts(ScriptRunner):
    """A session's context and its patches."""

    def update_context(
        self,
        context: str,
        fields: Mapping[str, bytes],
        *,
        results: Sequence[tuple[bytes, bytes]],
        content_hash: str,
        hashed: bool,
        expected: int | None,
        call: str,
        ttl_ms: int,
    ) -> PendingReply:
        """OK number hash | STALE number call."""
        return self._run(
            "update_context",
            (context,),
            (
                expecting(expected),
                raw(call),
                ttl_ms,
                content_hash,
                int(hashed),
                len(results),
                *pairs(results),
                *flat(fields),
            ),
        )

    def apply_patch(
        self,
        keys: PatchKeys,
        *,
        basis: tuple[int, str],
        payload: bytes,
        result: bytes,
        decision: bytes,
        by: str,
        wait_ms: int,
        keep_ms: int,
        limit: int,
        ttl_ms: int,
        call: str,
        announcement: Announcement,
    ) -> PendingReply:
        """OK new decision version | STALE number | DENIED waiting."""
        said = announcement
        return self._run(
            "apply_patch",
            keys.with_log(said.log),
            (
                *basis,
                raw(keys.patch_id),
                raw(keys.task_id),
                payload,
                result,
                decision,
                raw(by),
                wait_ms,
                keep_ms,
                limit,
                ttl_ms,
                said.max_rows,
                said.ttl_ms,
                call,
                *pairs(said.rows),
            ),
        )

    def resolve_patch(
        self,
        keys: PatchKeys,
        *,
        claim: str,
        by: str,
        decision: bytes,
        keep_ms: int,
        basis: tuple[int, str],
        result: bytes,
        ttl_ms: int,
        call: str,
        announcement: Announcement,
    ) -> PendingReply:
        """OK won decision version | TAKEN by at decision | EXPIRED | MISSING | STALE number."""
        said = announcement
        return self._run(
            "resolve_patch",
            keys.with_log(said.log),
            (
                raw(claim),
                raw(by),
                decision,
                keep_ms,
                raw(keys.patch_id),
                raw(keys.task_id),
                *basis,
                result,
                ttl_ms,
                said.max_rows,
                said.ttl_ms,
                call,
                *pairs(said.rows),
            ),
        )
