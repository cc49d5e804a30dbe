"""Whose the traces of a session are, and the erasure of their archived audit events.

A trace is found by the session's lists in Redis, by its archived trajectories and by its tasks, in
Redis and archived. Events go before what names their trace, and once more behind it: what came
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from redis_state.archive.model import RecordKind
from redis_state.archive.protocol import Archive, overlooked
from redis_state.archive.queries import ArchiveQuery
from redis_state.erasure.walking import FoundKey, KeyWalk, SessionFindings
from redis_state.scripts import topic_text
from redis_state.serialization.rows import as_object
from redis_state.store import RedisStateStore
from redis_state.stores.traces.audit_events import GLOBAL_TRACE
from redis_state.transport.clock import us_of
from redis_state.transport.key_text import escape

_PAGE, _ALL = 100, 1_000_000
# Traces whose events go in one step: PostgreSQL holds a lock of each.
_AT_ONCE = 200


class TraceErasure:
    """Find the traces of sessions of one store and its archive, and erase their archived events."""

    def __init__(self, store: RedisStateStore, archive: Archive | None) -> None:
        self._store = store
        self._archive = archive
        # Of traces the sessions whose tasks in Redis name them, as they stand in the names of keys.
        self._by_tasks: dict[str, set[str]] = {}

    async def of(self, session: SessionFindings) -> set[str]:
        """Return the traces of a session, of Redis and the archive."""
        session_id = session.session_id
        named = await self._named_by(key for key in session.keys if key.kind == "task")
        found = {trace for _, trace in named}
        found |= set(await self._store.trajectories.traces(session_id, limit=_ALL))
        found |= {trace for trace, _ in await self._store.bindings.conversations(session_id)}
        if self._archive is not None:
            found |= await self._of_trajectories(self._archive, session_id)
            found |= await self._of_tasks(self._archive, session_id)
        return found

    async def look_at_tasks(self, traces: Collection[str]) -> None:
        """Find the sessions whose tasks in Redis name these traces. It reads all tasks there."""
        wanted = set(traces) - {GLOBAL_TRACE}
        if not wanted:
            return
        async for page in KeyWalk(self._store).all(["task"]):
            for key, trace in await self._named_by(key for key in page if key.kind == "task"):
                if trace in wanted:
                    self._by_tasks.setdefault(trace, set()).add(key.tag)

    async def shared(self, traces: Collection[str], besides: Collection[str]) -> set[str]:
        """Return those of the traces that a session has which is none of ``besides``.

        A session has a trace if Redis says so, or if a task or a trajectory of it is archived. It
        has those that a task of it in Redis names, too: see `look_at_tasks`. What is of no trace is
        everybody's.
        """
        own, others = set(besides), set[str]()
        tags = {escape("session_id", each) for each in own}
        if self._archive is not None and traces:
            # Of another session's file that is gone nothing is known.
            known = overlooked.set(set())
            try:
                others |= await self._archive.shared_traces(sorted(traces), besides=sorted(own))
            finally:
                overlooked.reset(known)
        for trace_id in set(traces) - others:
            index = self._store.base.keys.trace_sessions(trace_id)
            members = await self._store.transport.commands.zrange(index, 0, -1)
            has_others = {topic_text(each) for each in members} - own
            if trace_id == GLOBAL_TRACE or has_others or self._by_tasks.get(trace_id, set()) - tags:
                others.add(trace_id)
        return others

    async def count(self, traces: Iterable[str]) -> int:
        """Count the archived events of traces."""
        if self._archive is None:
            return 0
        return await self._archive.count_records(RecordKind.EVENT, sorted(traces))

    async def count_durable(self, traces: Iterable[str]) -> int:
        """Count the events of traces that PostgreSQL has, of a store with durable events."""
        return await self._store.events.count_durable(sorted(traces))

    async def erase(self, traces: Iterable[str]) -> int:
        """Erase the archived events of traces that came before now; return how many there were.

        Of what came before, nothing is archived afterwards.
        """
        if self._archive is None:
            return 0
        # All that was read before has times of before.
        before_us = us_of(await self._store.transport.commands.time()) + 1
        owners = sorted(traces)
        were = 0
        for start in range(0, len(owners), _AT_ONCE):
            some = owners[start : start + _AT_ONCE]
            were += await self._archive.forget_records(RecordKind.EVENT, some, before_us=before_us)
        return were

    async def _named_by(self, keys: Iterable[FoundKey]) -> list[tuple[FoundKey, str]]:
        """Return those of the tasks that name a trace, with the trace."""
        found, tasks = list[tuple[FoundKey, str]](), list(keys)
        commands = self._store.transport.commands
        for start in range(0, len(tasks), _PAGE):
            some = tasks[start : start + _PAGE]
            read = [commands.hget(key.name, "document") for key in some]
            for key, data in zip(some, await asyncio.gather(*read), strict=True):
                with suppress(ValueError):
                    trace_id = as_object(data or b"{}").get("trace_id")
                    found += [(key, trace_id)] if isinstance(trace_id, str) else []
        return found

    async def _of_trajectories(self, archive: Archive, session_id: str) -> set[str]:
        found, after = set[str](), None
        while True:
            page = await archive.records(
                RecordKind.TRAJECTORY, session_id, after=after, limit=_PAGE
            )
            if not page:
                return found
            found |= {each.key for each in page}
            after = page[-1].place

    async def _of_tasks(self, archive: Archive, session_id: str) -> set[str]:
        # All of each id: one that was used again had another trace before.
        found, query = set[str](), ArchiveQuery(session_id=session_id, limit=_PAGE)
        while page := await archive.tasks(query):
            found |= {each.trace_id for each in page if each.trace_id is not None}
            query = replace(query, after=page[-1].end)
        return found
