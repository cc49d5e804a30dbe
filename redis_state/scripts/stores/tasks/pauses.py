"""The list of all open pauses: until when each is open, and in what order they were opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner


class PauseListKeys(NamedTuple):
    """The keys of the list of all open pauses, in a slot of their own."""

    expiries: str
    openings: str


class PauseListScripts(ScriptRunner):
    """The list of all open pauses. Its members are the keys of their tokens."""

    @script
    def list_pause(
        self, keys: PauseListKeys, *, member: str, opened: int, ttl_ms: int
    ) -> PendingReply:
        """OK."""

    @script
    def unlist_pauses(self, keys: PauseListKeys, *, members: Sequence[str]) -> PendingReply:
        """OK."""

    @script
    def page_pauses(self, keys: PauseListKeys, *, first: int, size: int) -> PendingReply:
        """OK differ member opened ..."""
