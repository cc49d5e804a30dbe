"""One of the two servers of a migration: its keys are listed, read, written and dropped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Self

from redis_state.errors import LostRace
from redis_state.migration.content import KINDS, Content
from redis_state.scripts import CopyKeys, ReplyCode, Scripts
from redis_state.settings import Settings
from redis_state.transport.clock import ms_of
from redis_state.transport.cluster.held import held_slots, were_moved
from redis_state.transport.keys import Keys
from redis_state.transport.transport import Transport

# Of a large key, items in the first part, and bytes in each further one, about.
_FIRST_ITEMS, _MORE_ITEMS, _PART_BYTES = 20, 1_000, 1 << 20
_KEEP_MS = 7 * 24 * 3_600_000
_TRIES = 3
_PROBE_MS = 5_000
# Of keys that come in many parts, so many are held in memory at once.
_LARGE = 2
_KNOWN = "surrogateescape"


class ServerNamespace:
    """A namespace on one server, or on the primaries of a cluster."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings = settings
        self._transport = Transport(settings)
        self._keys = Keys(settings.namespace)
        self._scripts = Scripts(self._transport)
        self._large = asyncio.Semaphore(_LARGE)

    def __str__(self) -> str:
        return str(self._transport.address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.aclose()

    async def names(self, *, copies: bool = False) -> AsyncGenerator[list[str]]:
        """Yield the names of all keys in pages, or of what a migration keeps beside them.

        A key that is there all the time is in a page, and may be in two. Errors: LostRace at the
        end if slots of a cluster were moved meanwhile, which may hide keys.
        """
        before = await held_slots(self._transport)
        pattern = f"{self._keys.namespace}:{'moving' if copies else 'v1'}:*"
        for server in await self._transport.each_primary():
            async for page in server.scan_all(pattern):
                yield [name.decode("utf-8", _KNOWN) for name in page]
        if await were_moved(self._transport, before):
            raise LostRace(f"slots of {self} are being moved: repeat the step when none is")

    async def has(self, name: str) -> bool:
        """Return whether there is such a key."""
        return bool(await self._transport.commands.exists(name))

    async def read(self, name: str) -> tuple[Content | None, bytes | None]:
        """Read a key, and the digest of what a migration has copied to it.

        Not atomic for a large key: one that is written meanwhile may be read half old, half new.
        """
        asked = self._transport.sender.connections
        reply = await self._scripts.read_part(self._of(name), after=b"", limit=_FIRST_ITEMS)
        if reply.word is ReplyCode.MISSING:
            return None, reply.facts[0]
        kind, left_ms, copied, after, about, part = reply.facts
        found = Content(kind.decode(), None if left_ms < 0 else max(1, left_ms))
        found.add(part if found.kind in KINDS else [])
        if after:
            async with self._large:
                limit = max(1, min(_MORE_ITEMS, _FIRST_ITEMS * _PART_BYTES // (found.size + 1)))
                while after:
                    reply = await self._scripts.read_part(self._of(name), after=after, limit=limit)
                    if reply.word is ReplyCode.MISSING:
                        return None, reply.facts[0]
                    _, _, _, after, about, part = reply.facts
                    found.add(part)
            if self._transport.sender.connections != asked:
                # Another process of the server may have answered: see `Commands.scan_all`.
                return await self.read(name)
        found.about = tuple(word if isinstance(word, bytes) else b"%d" % word for word in about)
        return found, copied

    async def write(self, name: str, content: Content) -> None:
        """Replace a key in one step, and note its digest. A crash leaves what was there.

        Each copy has a name of its own, so none has parts of another. Errors: LostRace if the
        server loses it, time and again.
        """
        for _ in range(_TRIES):
            if await self._written(name, content):
                return
        raise LostRace(f"the copy of {name} is gone before all of it is there")

    async def _written(self, name: str, content: Content) -> bool:
        parts, keys = [*content.parts()], self._of(name, os.urandom(6).hex())
        for number, (before, items) in enumerate(parts, start=1):
            reply = await self._scripts.write_part(
                keys,
                kind=content.kind,
                at=before,
                ttl_ms=content.ttl_ms,
                keep_ms=_KEEP_MS,
                digest=content.digest() if number == len(parts) else b"",
                about=content.about,
                items=items,
            )
            if reply.word is ReplyCode.AGAIN:
                return False
        return True

    async def drop(self, name: str, digest: bytes | None) -> None:
        """Delete a key; with a digest, one that was copied and not copied again."""
        if digest is None:
            await self._transport.commands.unlink(name)
        else:
            await self._scripts.drop_copy(self._of(name), digest=digest)

    async def drop_all(self, *, copies: bool = False) -> int:
        """Delete all keys that `names` yields; return how many."""
        dropped = 0
        async for page in self.names(copies=copies):
            dropped += sum(
                await asyncio.gather(*(self._transport.commands.unlink(name) for name in page))
            )
        return dropped

    async def is_same_as(self, other: ServerNamespace) -> bool:
        """Return whether both lead to one server: what is written here is found there."""
        probe = self._keys.copied(f"{{{os.urandom(9).hex()}}}")
        await self._transport.commands.set_if_absent(probe, b"", _PROBE_MS)
        return await other.has(probe)

    async def clock_ms(self) -> int:
        """Read the server's clock."""
        return ms_of(await self._transport.commands.time())

    async def info(self) -> dict[str, str]:
        """Read what the server says of itself; of a cluster, one of its nodes."""
        (server, *_) = await self._transport.each_primary()
        lines = (await server.info()).decode("utf-8", "replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _of(self, name: str, call: str = "") -> CopyKeys:
        return CopyKeys(name, self._keys.copied(name), self._keys.copy_of(name, call))
