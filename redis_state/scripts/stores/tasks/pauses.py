"""Lists of open pauses: that of all, and those of the sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner


class PauseListKeys(NamedTuple):
    """The keys of the list of all open pauses, in a slot of their own."""

    expiries: str
    openings: str


class PauseListScripts(ScriptRunner):
    """The lists of open pauses. Members of that of all are the keys of their tokens."""

    @script
    def list_pause(
        self, keys: PauseListKeys, *, member: str, opened: int, ttl_ms: int
    ) -> PendingReply:
        """OK."""

    @script
    def unlist_pauses(self, keys: PauseListKeys, *, members: Sequence[str]) -> PendingReply:
        """OK."""

    @script
    def begin_unlist_pauses(
        self, keys: PauseListKeys, *, members: Sequence[str]
    ) -> asyncio.Future[Any]:
        """Like `unlist_pauses`, without waiting for the reply."""

    @script
    def unlist_pause(self, task: str, *, tasks: str, token: str) -> PendingReply:
        """OK removed."""

    @script
    def page_pauses(self, keys: PauseListKeys, *, first: int, size: int) -> PendingReply:
        """OK differ member opened ..."""
