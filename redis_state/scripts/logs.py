"""Logs: append once, read after a cursor, find, clear."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from redis_state.scripts.runner import (
    SCRIPTS,
    Fence,
    LogLimits,
    PendingReply,
    ScriptRunner,
    raw,
    topic_bytes,
)
from redis_state.transport.keys import LONGEST_REMEMBERED, LogKeys
from redis_state.transport.resp import PreparedScript, prepare


class TraceKeys(NamedTuple):
    """What is kept of a trace, all in one slot; its bindings themselves are beside their index."""

    sessions: str
    events: LogKeys
    planner_events: LogKeys
    unreadable: str
    bindings: str


class LogScripts(ScriptRunner):
    """Logs: append once, read after a cursor, find, clear; a trace's with its bindings."""

    def append_log(
        self,
        log: LogKeys,
        rows: tuple[bytes, ...],
        limits: LogLimits,
        *,
        topic: str | None,
        fence: Fence | None = None,
    ) -> PendingReply:
        """OK new n... | LOST epoch. ``rows``: ids and rows, in turn."""
        remembered = topic is None or (type(topic) is str and len(topic) <= LONGEST_REMEMBERED)
        prepare_call = _prepared_append if remembered else _prepare_append
        prepared = prepare_call(log, topic, limits, fence)
        return self._run_prepared(prepared, rows)

    def read_log(
        self, log: LogKeys, *, after: int | None, after_ms: int, count: int, topic: str | None
    ) -> PendingReply:
        """OK first last last_ms rows | GAP reason n ms. -1: after no row."""
        return self._run(
            "read_log",
            (log.rows, log.ids, log.topic(topic)),
            ("" if after is None else after, after_ms, count, topic_bytes(topic)),
        )

    def tail_log(
        self, log: LogKeys, *, after_id: bytes, count: int, topic: str | None
    ) -> PendingReply:
        """OK rows."""
        return self._run(
            "tail_log",
            (log.rows, log.ids, log.topic(topic)),
            (after_id, count, topic_bytes(topic)),
        )

    def find_row(self, log: LogKeys, *, row_id: bytes) -> PendingReply:
        """OK n ms | MISSING. The id must not be empty."""
        return self._run("find_row", (log.rows, log.ids), (row_id,))

    def clear_log(self, log: LogKeys, *, topics: Sequence[str]) -> PendingReply:
        """OK dropped."""
        keys = [log.rows, log.ids, *(log.topic(topic) for topic in topics)]
        return self._run_once("clear_log", tuple(keys), ())

    def leave_trace(
        self,
        keys: TraceKeys,
        *,
        session: str,
        own: int,
        bindings: Sequence[tuple[str, str, bytes]],
    ) -> PendingReply:
        """OK others. ``bindings``: keys, names and writes; the session's ``own`` come first."""
        logs = (
            keys.events.rows,
            keys.events.ids,
            keys.planner_events.rows,
            keys.planner_events.ids,
        )
        named = tuple(key for key, _, _ in bindings)
        read = chain.from_iterable((topic_bytes(name), write) for _, name, write in bindings)
        return self._run_once(
            "leave_trace",
            (keys.sessions, *logs, keys.unreadable, keys.bindings, *named),
            (raw(session), own, *read),
        )

    def set_aside(
        self, unreadable: str, *, place: str, note: bytes, most: int, ttl_ms: int
    ) -> PendingReply:
        """OK new."""
        return self._run("set_aside", (unreadable,), (raw(place), note, most, ttl_ms))


def _prepare_append(
    log: LogKeys, topic: str | None, limits: LogLimits, fence: Fence | None
) -> PreparedScript:
    """Prepare all but the rows."""
    lease, mark = (fence.lease, fence.mark) if fence else (log.ids, b"")
    keys = (log.rows, log.ids, log.topic(topic), log.channel, lease)
    return prepare(SCRIPTS["append_log"], keys, (mark, topic_bytes(topic), *limits))


# A log at work is appended to again and again, under the same topic and fence.
_prepared_append = lru_cache(maxsize=1024)(_prepare_append)
