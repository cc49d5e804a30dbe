"""Who keeps the archive's retention, and who cleans up: one process each, once an hour."""

from __future__ import annotations

from redis_state.archive.encoding import moment_of_us
from redis_state.archive.identity import KnownArchive
from redis_state.archive.protocol import Archive
from redis_state.archive.retention import RetentionReport, moments_of
from redis_state.models.tasks import utc_now
from redis_state.primitives.lease import HeldLease, Leases
from redis_state.store import RedisStateStore
from redis_state.transport.clock import us_of

_HOUR_MS = 3_600_000


class Retainer:
    """Remove what has expired from the archive of a store, by its `archive_retention`.

    Without it a round deletes only what calls that died have left in the archive: no entry names
    it, so no erasure finds it either. Such a round has a lease of its own: it keeps no retention of
    another process back.

    The lease is not given back: until it has run out no process begins another round. One that
    dies in a round leaves the rest to the next.
    """

    def __init__(self, store: RedisStateStore, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self._known = KnownArchive(store, archive)
        self._leases = Leases(store.base.scripts, keep_ms=_HOUR_MS)

    async def run_once(self) -> RetentionReport | None:
        """Remove what has expired, and what died, to the end; None if another process does it.

        None also if no archiver has prepared the archive yet: nothing in it has expired.
        Errors: BackendError; ArchiveUnavailable; OtherArchive, and then another process may do it;
        LeaseLost if another process has the lease by
        now.
        """
        if await self._known.check() is None:
            return None
        keys = self._store.base.keys
        retains = bool(self._store.settings.archive_retention)
        key = keys.archive_retention() if retains else keys.archive_cleaning()
        held = await self._leases.acquire(key, duration_ms=_HOUR_MS)
        return None if held is None else await self._remove(held)

    async def count(self) -> RetentionReport:
        """Count what has expired, and remove nothing. Errors: BackendError; ArchiveUnavailable."""
        return await self._call(dry_run=True)

    async def remove(self) -> RetentionReport:
        """Remove what has expired now, without the lease. Errors: as `count`."""
        total = await self._call()
        while total.more:
            total.merge(await self._call())
        return total

    async def clean(self) -> None:
        """Delete what calls that died have left, without the lease. Errors: ArchiveUnavailable."""
        await self._archive.retain({})

    async def _remove(self, held: HeldLease) -> RetentionReport:
        total = await self._call()
        while total.more:
            await self._leases.renew(held, duration_ms=_HOUR_MS)
            total.merge(await self._call())
        return total

    async def _call(self, *, dry_run: bool = False) -> RetentionReport:
        """Make one call. Rows have times of the Redis server, so its clock decides.

        Not one that is ahead of ours: what it removed would be young. Of another archive than Redis
        knows nothing is removed.
        """
        await self._known.check()
        theirs = moment_of_us(us_of(await self._store.transport.commands.time()))
        now = min(theirs, utc_now())
        before = moments_of(self._store.settings.archive_retention, now)
        return await self._archive.retain(before, dry_run=dry_run)
