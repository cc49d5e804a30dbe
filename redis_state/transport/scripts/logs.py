"""Logs: append once, read after a cursor, find, clear."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.transport.keys import LogKeys
from redis_state.transport.scripts.run import (
    Fence,
    Reply,
    ScriptRunner,
    pairs,
    raw,
    topic_bytes,
)


class LogScripts(ScriptRunner):
    """Logs: append once, read after a cursor, find, clear."""

    async def append_log(
        self,
        log: LogKeys,
        rows: Sequence[tuple[bytes, bytes]],
        *,
        topic: str | None,
        max_rows: int,
        ttl_ms: int,
        announce: bool,
        fence: Fence | None = None,
    ) -> Reply:
        """OK new n... | LOST epoch."""
        keys = [log.rows, log.ids, log.topic(topic), log.channel]
        if fence:
            keys.append(fence.lease)
        return await self._run(
            "append_log",
            keys,
            (
                fence.epoch if fence else "",
                topic_bytes(topic),
                max(max_rows, 0),
                ttl_ms,
                int(announce),
                *pairs(rows),
            ),
        )

    async def read_log(
        self, log: LogKeys, *, after: int | None, after_ms: int, count: int, topic: str | None
    ) -> Reply:
        """OK first last last_ms rows | GAP reason first before_ms last last_ms."""
        return await self._run(
            "read_log",
            (log.rows, log.ids, log.topic(topic)),
            ("" if after is None else after, after_ms, count, topic_bytes(topic)),
        )

    async def tail_log(
        self, log: LogKeys, *, after_id: bytes, count: int, topic: str | None
    ) -> Reply:
        """OK rows."""
        return await self._run(
            "tail_log",
            (log.rows, log.ids, log.topic(topic)),
            (after_id, count, topic_bytes(topic)),
        )

    async def find_row(self, log: LogKeys, *, row_id: bytes) -> Reply:
        """OK n ms | MISSING. The id must not be empty."""
        return await self._run("find_row", (log.rows, log.ids), (row_id,))

    async def clear_log(self, log: LogKeys, *, topics: Sequence[str]) -> Reply:
        """OK dropped."""
        keys = [log.rows, log.ids, *(log.topic(topic) for topic in topics)]
        return await self._run("clear_log", keys, ())

    async def set_aside(
        self, unreadable: str, *, place: str, note: bytes, most: int, ttl_ms: int
    ) -> Reply:
        """OK new."""
        return await self._run("set_aside", (unreadable,), (raw(place), note, most, ttl_ms))
