"""Logs: append once, read after a cursor, find, clear."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from redis_state.scripts.binding import remembering, script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Fence, LogLimits, Topic, topic_bytes
from redis_state.transport.key_groups import LogKeys


class TraceKeys(NamedTuple):
    """What is kept of a trace, all in one slot; its bindings themselves are beside their index."""

    sessions: str
    events: LogKeys
    planner_events: LogKeys
    unreadable: str
    bindings: str


@dataclass(frozen=True, slots=True)
class BindingWrites:
    """Bindings of a trace: each with its key, its name in the index and its write."""

    each: Sequence[tuple[str, str, bytes]]

    @property
    def binding_keys(self) -> list[str]:
        """Return their keys."""
        return [key for key, _, _ in self.each]

    @property
    def read(self) -> list[tuple[bytes, bytes]]:
        """Return their names, each with the write that it was read at."""
        return [(topic_bytes(name), write) for _, name, write in self.each]


class LogScripts(ScriptRunner):
    """Logs: append once, read after a cursor, find, clear; a trace's with its bindings."""

    # A log at work is appended to again and again, under the same topic and fence.
    @remembering(behind="rows_in", most=1024)
    def append_log(
        self,
        log: LogKeys,
        rows_in: tuple[bytes, ...],
        limits: LogLimits,
        *,
        topic: Topic,
        fence: Fence | None = None,
    ) -> PendingReply:
        """OK new n... | LOST epoch. ``rows_in``: ids and rows, in turn."""

    @script
    def hold_steering(self, log: LogKeys, *, task: str, spare_ms: int) -> PendingReply:
        """OK changed."""

    @script
    def settle_steering(self, log: LogKeys, *, tasks: str) -> PendingReply:
        """OK changed."""

    @script
    def change_log(
        self,
        log: LogKeys,
        limits: LogLimits,
        *,
        changes: str,
        name: str,
        most: int,
        clears: bool,
        rows_in: Sequence[bytes],
        fence: Fence | None = None,
    ) -> PendingReply:
        """OK changed | LOST epoch. ``rows_in``: ids and rows, in turn."""

    @script
    def release_rows(self, log: LogKeys, *, n: int, at_ms: int, ttl_ms: int) -> PendingReply:
        """OK more | STALE."""

    @script
    def pack_log(self, log: LogKeys) -> PendingReply:
        """OK packed."""

    @script
    def begin_pack_log(self, log: LogKeys) -> asyncio.Future[Any]:
        """Like `pack_log`, without waiting for the reply."""

    @script
    def read_log(
        self,
        log: LogKeys,
        *,
        after: int | None,
        after_ms: int,
        count: int,
        topic: Topic,
        most_bytes: int,
    ) -> PendingReply:
        """OK first last last_ms rows cut | GAP reason n ms. -1: after no row."""

    @script
    def tail_log(
        self,
        log: LogKeys,
        *,
        after_id: bytes,
        before: int | None,
        count: int,
        topic: Topic,
        most_bytes: int,
    ) -> PendingReply:
        """OK rows cut, the newest first."""

    @script
    def find_row(self, log: LogKeys, *, row_id: bytes) -> PendingReply:
        """OK n ms | MISSING. The id must not be empty."""

    @script
    def clear_log(self, log: LogKeys) -> PendingReply:
        """OK dropped."""

    @script
    def leave_trace(
        self,
        keys: TraceKeys,
        *,
        session: str,
        keeps: bool,
        own: int,
        bindings: Annotated[Sequence[tuple[str, str, bytes]], BindingWrites],
    ) -> PendingReply:
        """OK others. ``bindings``: keys, names and writes; the session's ``own`` come first."""

    @script
    def set_aside(
        self, unreadable: str, *, place: str, note: bytes, most: int, ttl_ms: int
    ) -> PendingReply:
        """OK new."""
