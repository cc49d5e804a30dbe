"""The watch list: what a process must inspect, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.wire.resp import Argument


class WatchKeys(NamedTuple):
    """The keys of a watch list."""

    watch: str

    @property
    def clock(self) -> str:
        """Return the key of the time at which it was last written."""
        return f"{self.watch}:clock"

    @property
    def known(self) -> str:
        """Return the key of the queues' history that its entries were compared with."""
        return f"{self.watch}:history"


def _delayed(entries: Sequence[tuple[bytes, float | None]]) -> list[Argument]:
    tail: list[Argument] = []
    for entry, delay_ms in entries:
        tail += (entry, "" if delay_ms is None else str(delay_ms))
    return tail


_Watch: TypeAlias = Annotated[str, WatchKeys]


class WatchScripts(ScriptRunner):
    """The watch list: what a process must inspect, and when."""

    @script
    def watch_entry(
        self,
        watch: _Watch,
        *,
        entry: bytes,
        delay_ms: int,
        stands: Literal["later", "given", "first", "sooner", "room"],
    ) -> PendingReply:
        """OK when."""

    @script
    def begin_watch_entry(
        self,
        watch: _Watch,
        *,
        entry: bytes,
        delay_ms: int,
        stands: Literal["later", "given", "first", "sooner"],
    ) -> asyncio.Future[Any]:
        """OK when. It does not wait for the reply."""

    @script
    def begin_watch_since(
        self,
        watch: _Watch,
        *,
        since: str,
        entry: bytes,
        delay_ms: int,
        stands: Literal["given", "sooner"],
    ) -> asyncio.Future[Any]:
        """OK when. It does not wait for the reply."""

    @script
    def watch_since(
        self,
        watch: _Watch,
        *,
        since: str,
        entry: bytes,
        delay_ms: int,
        stands: Literal["given", "sooner"],
    ) -> PendingReply:
        """OK when."""

    @script
    def note_waits(self, watch: str, *, since: str, entries: Sequence[bytes]) -> PendingReply:
        """OK new."""

    @script
    def claim_due(
        self,
        watch: _Watch,
        *,
        limit: int,
        hold_ms: int,
        about: str | None = None,
        indexed: bool = False,
    ) -> PendingReply:
        """OK mark, then entry, when it was due and what the index ``about`` tasks says, in turn."""

    @script
    def settle_claim(
        self,
        watch: _Watch,
        *,
        since: str | None = None,
        dated: bool = False,
        mark: bytes,
        entries: Annotated[Sequence[tuple[bytes, float | None]], _delayed],
    ) -> PendingReply:
        """OK settled. ``entries`` with their delays; None takes an entry out, also of ``since``."""

    @script
    def hasten_entries(
        self,
        watch: _Watch,
        *,
        walker: str,
        hold_ms: int,
        history: str,
        store: str,
        nodes: str,
        all: bool,  # noqa: A002
        first_ms: int,
        step_ms: int,
        entries: Sequence[bytes],
    ) -> PendingReply:
        """OK known | HELD. What is due soon is no sweeper's claim any more."""
