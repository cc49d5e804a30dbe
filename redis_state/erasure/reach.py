"""What Redis says is kept elsewhere, and no setting of this process leads to.

An erasure asks before it removes anything: afterwards Redis does not know any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from redis_state.archive.working import WorkingArchivers
from redis_state.store import RedisStateStore
from redis_state.stores.kept_elsewhere import ElsewhereSigns
from redis_state.transport.keys import WATCH_SHARDS

_TOGETHER = 64
_ALL = 1_000_000


class Reach:
    """What an erasure of a store cannot reach, with or without an archive."""

    def __init__(self, store: RedisStateStore, *, has_archive: bool) -> None:
        self._store = store
        self._has_archive = has_archive

    async def beyond(self, sessions: Collection[str]) -> dict[str, str]:
        """Return what is out of reach, with the reason. What Redis lost it does not know."""
        signs: set[str] = set()
        if not (self._has_archive and self._store.events.is_durable):
            signs = await ElsewhereSigns(self._store.base).all()
        found: dict[str, str] = {}
        if not self._has_archive and (why := await self._of_archive(signs, sessions)):
            found["archive"] = f"archive_url is not set here, and {why}"
        if not self._store.events.is_durable and (why := await self._of_events(signs)):
            found["durable events"] = f"durable_events is not set here, and {why}"
        return found

    async def _of_archive(self, signs: Collection[str], sessions: Collection[str]) -> str | None:
        if names := await WorkingArchivers(self._store).names():
            return f"{len(names)} archivers work"
        if "archive" in signs:
            return "the namespace was archived"
        keys = self._store.base.keys
        lists = (keys.archive_watch, keys.archive_sessions, keys.archive_records)
        if await self._any([key_of(shard) for key_of in lists for shard in range(WATCH_SHARDS)]):
            return "something waits for the archive"
        for session_id in sessions:
            if await self._is_archived(session_id):
                return "a record of the session is archived"
        return None

    async def _of_events(self, signs: Collection[str]) -> str | None:
        if "durable_events" in signs:
            return "the namespace had durable events"
        watched = self._store.base.keys.events_watch
        if await self._any([watched(shard) for shard in range(WATCH_SHARDS)]):
            return "events are moved to PostgreSQL"
        return None

    async def _any(self, lists: Collection[str]) -> bool:
        commands = self._store.transport.commands
        return any(await asyncio.gather(*(commands.zcard(each) for each in lists)))

    async def _is_archived(self, session_id: str) -> bool:
        """Return whether a task or a trajectory of a session says that it is archived."""
        store, keys = self._store, self._store.base.keys
        traces = await store.trajectories.traces(session_id, limit=_ALL)
        records = [keys.task(session_id, each) for each in await store.tasks.ids(session_id)]
        records += [keys.trajectory(session_id, each) for each in traces]
        commands = store.transport.commands
        for start in range(0, len(records), _TOGETHER):
            some = records[start : start + _TOGETHER]
            read = [
                store.base.scripts.read(commands.hget(each, "archived"), each, command="HGET")
                for each in some
            ]
            if any(await asyncio.gather(*read)):
                return True
        return False
