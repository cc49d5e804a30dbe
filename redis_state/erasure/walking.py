"""Find the keys of sessions: no index lists all of them, so all names of the servers are read."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection
from typing import NamedTuple
from urllib.parse import unquote

from redis_state.errors import LostRace
from redis_state.memory.keys import MemoryKey
from redis_state.store import RedisStateStore
from redis_state.transport.cluster.held import held_slots, were_moved
from redis_state.transport.key_text import escape, is_digest, unescape
from redis_state.transport.keys import artifact_place

_KV = "kv:v1:"
_KV_OWNER = re.compile(r"([^:]*):([^:]*):(.*?):(?:session|task):", re.DOTALL)
_PARTS = 3
# Names that are no UTF-8 are read, and written again, as they are.
_KNOWN = "surrogateescape"
# Walks, if slots of a cluster are moved meanwhile.
_TRIES = 3
# Up to so many sessions the server compares the names.
_FEW = 3


class FoundKey(NamedTuple):
    """A key: its slot's name, its kind, and what follows."""

    name: str
    tag: str
    kind: str
    rest: str


class KeyWalk:
    """The keys of a namespace."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        namespace = re.escape(store.settings.namespace)
        self._form = re.compile(
            rf"{namespace}:(?:v1:\{{(.*?)\}}:([^:]+):?(.*)|moving:\{{(.*?)\}}(.*))", re.DOTALL
        )

    async def of_sessions(self, sessions: Collection[str]) -> AsyncGenerator[list[FoundKey]]:
        """Yield the keys in the slots of sessions and of their artifacts, and all of memories.

        A key that is there all the time is in a page, and may be in two. Errors: CommandRefused
        without the right to read names: it takes the role ``admin``. LostRace while slots of a
        cluster are being moved.
        """
        tags = {escape("session_id", each) for each in sessions}
        places = {artifact_place(each) for each in sessions}
        space = self._store.settings.namespace
        patterns = [f"{space}:*"]
        if len(tags) <= _FEW:
            patterns = [f"{space}:*{{{tag}}}*" for tag in sorted(tags | places)]
            patterns.append(f"{space}:v1:{{*}}:memory")
        async for found in self._pages(patterns):
            yield [
                each
                for each in found
                if each.tag in tags
                or (each.tag in places and each.kind in ("artifacts", "call"))
                or each.kind == "memory"
            ]

    async def all(self, kinds: Collection[str]) -> AsyncGenerator[list[FoundKey]]:
        """Yield all keys whose kinds begin so."""
        patterns = [f"{self._store.settings.namespace}:v1:{{*}}:{kind}*" for kind in kinds]
        async for found in self._pages(patterns):
            yield [each for each in found if each.kind.startswith(tuple(kinds))]

    async def _pages(self, patterns: Collection[str]) -> AsyncGenerator[list[FoundKey]]:
        """Yield what matches; once more from the start if slots were moved, which may hide keys."""
        transport = self._store.transport
        for _ in range(_TRIES):
            before = await held_slots(transport)
            for pattern in patterns:
                for server in await transport.each_primary():
                    async for page in server.scan_all(pattern):
                        found = [self._read(name.decode("utf-8", _KNOWN)) for name in page]
                        yield [each for each in found if each is not None]
            if not await were_moved(transport, before):
                return
        raise LostRace("slots of the cluster are being moved: repeat the call when none is")

    def _read(self, name: str) -> FoundKey | None:
        found = self._form.fullmatch(name)
        if found is None:
            return None
        if found[4] is not None:
            return FoundKey(name, found[4], "moving", found[5])
        return FoundKey(name, found[1], found[2], found[3])


def owner_of_memory(tag: str) -> MemoryKey | None:
    """Read whose memory a key is; None if it does not say, or is a digest.

    A key of one part is its session's.
    """
    if is_digest(tag):
        return None
    text = unescape(tag)
    if text.startswith(_KV):
        # A session's id may have colons: it ends where the scope begins.
        stated = _KV_OWNER.match(text, len(_KV))
        if stated is None:
            return None
        tenant, user, session = stated.groups()
    else:
        parts = [unquote(part) for part in text.split(":")]
        if len(parts) == 1:
            return _memory_key("", "", text)
        if len(parts) != _PARTS:
            return None
        tenant, user, session = parts
    return _memory_key(tenant, user, session)


def _memory_key(tenant: str, user: str, session: str) -> MemoryKey | None:
    return MemoryKey(tenant, user, session) if session.strip() else None
