"""Erase the archived audit events of a session: those of its traces that no other session has.

A trace is found by the session's lists in Redis, by its archived trajectories and by its archived
tasks. Events go before what names their trace, and once more behind it: what came meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from redis_state.archive.history import archived_events
from redis_state.archive.model import ArchiveListing, ArchiveQuery, RecordKind
from redis_state.archive.protocol import Archive
from redis_state.scripts import topic_text
from redis_state.store import RedisStateStore
from redis_state.stores.traces.audit_events import GLOBAL_TRACE
from redis_state.transport.clock import us_of

_PAGE, _ALL = 100, 1_000_000


class ArchivedEventErasure:
    """Find and erase the archived events of a session of one store."""

    def __init__(self, store: RedisStateStore, archive: Archive) -> None:
        self._store = store
        self._archive = archive

    async def traces(self, session_id: str) -> list[str]:
        """List the traces of a session, of Redis and the archive, that no other session has.

        Another session has a trace if Redis says so, or a task of it is archived.
        """
        if RecordKind.EVENT.what not in self._archive.classes:
            return []
        found = set(await self._store.trajectories.traces(session_id, limit=_ALL))
        found |= {trace for trace, _ in await self._store.bindings.conversations(session_id)}
        found |= await self._of_trajectories(session_id) | await self._of_tasks(session_id)
        return [each for each in sorted(found) if not await self._is_shared(each, session_id)]

    async def count(self, traces: Iterable[str]) -> int:
        """Count the archived events of traces."""
        return sum([len(await archived_events(self._archive, each)) for each in traces])

    async def erase(self, traces: Iterable[str]) -> int:
        """Erase the archived events of traces that came before now; return how many there were.

        Of what came before, nothing is archived afterwards.
        """
        # All that was read before has times of before.
        before_us = us_of(await self._store.transport.commands.time()) + 1
        forget = self._archive.forget_records
        return sum([await forget(RecordKind.EVENT, each, before_us=before_us) for each in traces])

    async def _of_trajectories(self, session_id: str) -> set[str]:
        found, after = set[str](), None
        while True:
            page = await self._archive.records(
                RecordKind.TRAJECTORY, session_id, after=after, limit=_PAGE
            )
            if not page:
                return found
            found |= {each.key for each in page}
            after = page[-1].place

    async def _of_tasks(self, session_id: str) -> set[str]:
        found, after = set[str](), None
        while True:
            page = await self._archive.find(
                ArchiveListing(session_id=session_id, after=after, limit=_PAGE)
            )
            found |= {each.trace_id for each in page.tasks if each.trace_id is not None}
            after = page.end
            if after is None:
                return found

    async def _is_shared(self, trace_id: str, session_id: str) -> bool:
        if trace_id == GLOBAL_TRACE:
            return True
        index = self._store.base.keys.trace_sessions(trace_id)
        members = await self._store.transport.commands.zrange(index, 0, -1)
        if {topic_text(each) for each in members} - {session_id}:
            return True
        after = None
        while True:
            tasks = await self._archive.tasks(
                ArchiveQuery(trace_id=trace_id, after=after, limit=_PAGE)
            )
            if not tasks:
                return False
            if any(each.session_id != session_id for each in tasks):
                return True
            after = tasks[-1].end
