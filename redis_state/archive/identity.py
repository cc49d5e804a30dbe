"""Which archive has what Redis has marked as archived. Another one would be read in its place.

The archive has an id: a row of its database, or an object in its folder. `prepare` writes it, once:
of processes that come together the first one's stays, and each reads it back. An archive of an
earlier version gets one when an archiver prepares it.

Redis has the id of the archive that its marks are of, one for each namespace. The first archiver
leaves it there, and what it finds there stands. So of archivers that come together with two
archives one is refused. The key lives for 400 days after an archiver has compared it, longer than
anything is held. `release` removes it.

An archiver compares the two when it starts, again after any trouble, and once a minute. Where Redis
has an id it makes no archive: a folder that is not mounted stays empty. After a mismatch it marks
nothing, and what waits stays held. Commands that remove from the archive compare too. Who only
reads neither compares nor makes one.

    Redis goes back to before it had an id      the archive that is there is taken
    Redis goes back to the id of another one    archivers refuse, until a person accepts this one
    an archive comes back from a backup         it has its id, unless the backup had none
    another archive is accepted                 archivers of the earlier one refuse within a minute:
                                                what they mark until then is listed by nobody, so
                                                who accepts while one works lists all once more
"""

from __future__ import annotations

import asyncio
from time import monotonic

from redis_state.archive.protocol import Archive, complete
from redis_state.errors import ArchiveUnavailable, OtherArchive
from redis_state.store import RedisStateStore

_COMPARE_EVERY_S = 60.0
# What a round that had compared just before may take.
_ROUND_S = 30.0


class KnownArchive:
    """The archive of a store, and whether it is the one that Redis knows."""

    def __init__(self, store: RedisStateStore, archive: Archive) -> None:
        self._archive = complete(archive)
        self._scripts = store.base.scripts
        self._commands = store.transport.commands
        self._key = store.base.keys.archive_known()
        self._prepared = False
        self._compared_at: float | None = None

    async def ready(self) -> None:
        """Prepare the archive, and compare it. Within a minute after that, nothing.

        Errors: OtherArchive, and then nothing was made; ArchiveUnavailable.
        """
        compared_at = self._compared_at
        if compared_at is not None and monotonic() - compared_at < _COMPARE_EVERY_S:
            return
        await self.check()
        if not self._prepared:
            await self._archive.prepare()
            self._prepared = True
        found = await self._identify()
        known = await self._know(found)
        if known != found:
            raise OtherArchive("prepare", known, found)
        self._compared_at = monotonic()

    def forget(self) -> None:
        """Prepare and compare again in the next call: the archive may be another one by then."""
        self._prepared, self._compared_at = False, None

    async def check(self) -> str | None:
        """Compare, and write nothing; return the archive's id, or None if it has none yet.

        Errors: OtherArchive if Redis knows another one.
        """
        known, found = await self.look()
        if known is not None and known != found:
            raise OtherArchive("use it", known, found)
        return found

    async def look(self) -> tuple[str | None, str | None]:
        """Return the id that Redis knows, and that of the archive. None for none."""
        held = await self._scripts.read(
            self._commands.hget(self._key, "id"), self._key, command="HGET"
        )
        return None if held is None else held.decode(), await self._archive.identify()

    async def accept(self) -> None:
        """Prepare the archive, and have Redis know it from now on, whatever it knew."""
        await self._archive.prepare()
        await self._know(await self._identify(), instead=True)

    async def _identify(self) -> str:
        found = await self._archive.identify()
        if found is None:
            raise ArchiveUnavailable("prepare", "it has gone meanwhile")
        return found

    async def _know(self, found: str, *, instead: bool = False) -> str:
        reply = await self._scripts.know_archive(self._key, id=found, instead=instead)
        return reply.text(0)


async def all_compared() -> None:
    """Wait until every archiver that works now has compared again."""
    await asyncio.sleep(_COMPARE_EVERY_S + _ROUND_S)
