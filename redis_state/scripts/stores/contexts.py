"""A session's context and its patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Announcement, Expected, raw


@dataclass(frozen=True, slots=True)
class PatchKeys:
    """The keys of one patch of a session's context; all in its session's slot."""

    patch_id: str
    task_id: str
    context: str
    patch: str
    patches: str
    kept: str

    @property
    def topic(self) -> str:
        """Return the topic of the task's updates."""
        return self.task_id


def _basis(basis: tuple[int, str]) -> bytes:
    number, content_hash = basis
    return raw(f"{number} {content_hash}")


# The number and the hash of the context that a decision was made on.
Basis: TypeAlias = Annotated[tuple[int, str], _basis]


class ContextScripts(ScriptRunner):
    """A session's context and its patches."""

    @script
    def update_context(
        self,
        context: str,
        fields: Mapping[str, bytes],
        *,
        results: Sequence[tuple[bytes, bytes]],
        content_hash: str,
        hashed: bool,
        expected: Expected,
        call: str,
        ttl_ms: int,
    ) -> PendingReply:
        """OK number hash | STALE number call."""

    @script
    def apply_patch(
        self,
        keys: PatchKeys,
        *,
        basis: Basis,
        payload: bytes,
        result: bytes,
        decision: bytes,
        actor: str,
        wait_ms: int,
        keep_ms: int,
        limit: int,
        ttl_ms: int,
        call: str,
        announcement: Announcement,
    ) -> PendingReply:
        """OK new decision version | STALE number | DENIED waiting."""

    @script
    def resolve_patch(
        self,
        keys: PatchKeys,
        *,
        claim: str,
        actor: str,
        decision: bytes,
        keep_ms: int,
        basis: Basis,
        result: bytes,
        ttl_ms: int,
        call: str,
        announcement: Announcement,
    ) -> PendingReply:
        """OK won decision version | TAKEN by at decision | EXPIRED | MISSING | STALE number."""
