"""Threads of LangGraph, items of its store, and the listings of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Fence
from redis_state.transport.wire.resp import Argument


def _mark(claim: Fence | None) -> bytes:
    return b"" if claim is None else claim.mark


Claim: TypeAlias = Annotated[Fence | None, _mark]


@dataclass(frozen=True, slots=True)
class GraphKeys:
    """The keys of a thread, all in its slot."""

    thread: str
    order: str
    puts: str


@dataclass(frozen=True, slots=True)
class GraphListing:
    """The keys of a shard of a listing."""

    index: str
    expiries: str


class GraphScripts(ScriptRunner):
    """Threads of LangGraph. A place is a checkpoint's namespace and id, as a thread has it."""

    @script
    def put_checkpoint(
        self,
        keys: GraphKeys,
        *,
        mark: Claim,
        listed: bool,
        place: bytes,
        parent: bytes,
        row: bytes,
        ttl_ms: int,
        values: Sequence[bytes],
    ) -> PendingReply:
        """OK kept | MISSING | STALE | LOST epoch | HELD left_ms."""

    @script
    def put_graph_writes(
        self,
        keys: GraphKeys,
        *,
        mark: Claim,
        listed: bool,
        place: bytes,
        task: str,
        ttl_ms: int,
        writes: Sequence[Argument],
    ) -> PendingReply:
        """OK | MISSING | LOST epoch | HELD left_ms."""

    @script
    def read_checkpoints(
        self, keys: GraphKeys, *, most_bytes: int, places: Sequence[bytes]
    ) -> PendingReply:
        """OK, names and values, then for each: place, row, lines and writes."""

    @script
    def page_checkpoints(
        self, keys: GraphKeys, *, high: bytes, low: bytes, size: int, most_bytes: int
    ) -> PendingReply:
        """OK last, names and values, then for each: place, row, lines and writes."""

    @script
    def walk_deltas(
        self, keys: GraphKeys, *, place: bytes, most: int, channels: Sequence[bytes]
    ) -> PendingReply:
        """OK at, then for each: lines and writes, channels and names, names and values."""

    @script
    def list_checkpoints(
        self, keys: GraphKeys, *, high: bytes, low: bytes, size: int
    ) -> PendingReply:
        """OK, then the place and the row of each."""

    @script
    def read_bases(
        self, keys: GraphKeys, *, most_bytes: int, names: Sequence[bytes]
    ) -> PendingReply:
        """OK, then of each the name of the value that it continues, or nothing."""

    @script
    def list_graph_namespaces(self, keys: GraphKeys, *, after: bytes, size: int) -> PendingReply:
        """OK, then the place of the newest checkpoint of each."""

    @script
    def drop_checkpoints(
        self,
        keys: GraphKeys,
        *,
        mark: Claim,
        namespace: str,
        watch: bytes,
        seen: int,
        last: bytes,
        known: int,
        newest: bytes,
        forks: bool,
        ttl_ms: int,
        places: Sequence[bytes],
        names: Sequence[bytes],
    ) -> PendingReply:
        """OK dropped seen last puts parents kept names | STALE | LOST epoch | HELD left_ms."""

    @script
    def watch_graph_puts(self, keys: GraphKeys, *, watch: str, ttl_ms: int) -> PendingReply:
        """OK watch length last."""

    @script
    def delete_graph_thread(self, keys: GraphKeys, *, mark: Claim) -> PendingReply:
        """OK deleted | LOST epoch | HELD left_ms."""

    @script
    def enter_listing(self, keys: GraphListing, *, entry: bytes, ttl_ms: int) -> PendingReply:
        """OK."""

    @script
    def renew_listing(self, keys: GraphListing, *, entry: bytes, ttl_ms: int) -> PendingReply:
        """OK renewed."""

    @script
    def read_listing(self, keys: GraphListing, *, start: bytes, size: int) -> PendingReply:
        """OK, then each entry and its stamp."""

    @script
    def leave_listing(self, keys: GraphListing, *, entry: bytes, stamp: bytes) -> PendingReply:
        """OK removed."""

    @script
    def unlist_missing(self, keys: GraphListing, *, entry: bytes, stamp: bytes) -> PendingReply:
        """OK removed."""

    @script
    def list_store_namespaces(
        self, keys: GraphListing, *, start: bytes, size: int, most: int
    ) -> PendingReply:
        """OK swept, then each namespace; none while there may be more that have expired."""

    @script
    def put_store_item(self, item: str, *, value: bytes, ttl_ms: int) -> PendingReply:
        """OK."""

    @script
    def read_store_item(self, item: str, *, refresh: bool) -> PendingReply:
        """OK value created updated ttl refreshed | MISSING."""
