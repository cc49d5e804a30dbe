"""Find the keys of sessions: no index lists all of them, so all names of the servers are read."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote

from redis_state.erasure.key_owners import class_of
from redis_state.errors import BackendUnavailable, LostRace
from redis_state.memory.keys import MemoryKey, session_of
from redis_state.store import RedisStateStore
from redis_state.transport.cluster.held import held_slots, were_moved
from redis_state.transport.key_text import escape, is_digest, unescape
from redis_state.transport.keys import artifact_place, graph_task

_KV = "kv:v1:"
_KV_OWNER = re.compile(r"([^:]*):([^:]*):(.*?):(?:session|task):", re.DOTALL)
_PARTS = 3
_SIZE = re.compile(r"[0-9]{1,9}")
# Names that are no UTF-8 are read, and written again, as they are.
_KNOWN = "surrogateescape"
# Walks, if slots of a cluster are moved meanwhile.
_TRIES = 3
# Up to so many sessions the server compares the names.
_FEW = 3
# What LangGraph keeps under the names of tasks.
_OF_TASKS = ("graph", "graph-order", "graph-puts", "graph-run")
# The last is of earlier versions: a session's open pauses, which stand among its tasks now.
_OTHER_KINDS = ("artifacts", "moving", "pauses")


class FoundKey(NamedTuple):
    """A key: its slot's name, its kind, and what follows."""

    name: str
    tag: str
    kind: str
    rest: str


@dataclass(slots=True)
class SessionFindings:
    """What a walk has found of a session."""

    session_id: str
    keys: list[FoundKey] = field(default_factory=list[FoundKey])
    memories: list[FoundKey] = field(default_factory=list[FoundKey])
    tasks: set[str] = field(default_factory=set[str])


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
        wanted = set(sessions)
        space = self._store.settings.namespace
        patterns = [f"{space}:*"]
        if len(tags) <= _FEW:
            patterns = [f"{space}:*{{{tag}}}*" for tag in sorted(tags | places)]
            begins = (escape("thread_id", graph_task(each, "")) for each in sessions)
            # A long one is a digest, and found by the listing of threads alone.
            patterns += [f"{space}:v1:{{{each}*}}:graph*" for each in begins if not is_digest(each)]
            patterns.append(f"{space}:v1:{{*}}:memory")
        async for found in self._pages(patterns):
            yield [
                each
                for each in found
                if each.tag in tags
                or (each.tag in places and each.kind in ("artifacts", "call"))
                or each.kind == "memory"
                or (each.kind in _OF_TASKS and session_of_task(each.tag) in wanted)
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
            before, left = await held_slots(transport), None
            try:
                for pattern in patterns:
                    for server in await transport.each_primary():
                        async for page in server.scan_all(pattern):
                            found = [self._read(name.decode("utf-8", _KNOWN)) for name in page]
                            yield [each for each in found if each is not None]
            except BackendUnavailable as error:
                # So ends the walk of a node that has lost its last slot meanwhile.
                left = error
            if not await were_moved(transport, before):
                if left is not None:
                    raise left
                return
        raise LostRace("slots of the cluster are being moved: repeat the call when none is")

    def _read(self, name: str) -> FoundKey | None:
        found = self._form.fullmatch(name)
        if found is None:
            return None
        if found[4] is not None:
            return FoundKey(name, found[4], "moving", found[5])
        return FoundKey(name, found[1], found[2], found[3])


def session_of_task(tag: str) -> str | None:
    """Return the session of a task after which something of LangGraph is named, or None."""
    size, _, name = ("" if is_digest(tag) else unescape(tag)).partition(":")
    if not _SIZE.fullmatch(size):
        return None
    return name[: int(size)] if name[int(size) : int(size) + 1] == "/" else None


def owner_of_memory(tag: str) -> MemoryKey | None:
    """Read whose memory a key is; None if it does not say, or is a digest.

    A key of one part is its session's.
    """
    if is_digest(tag):
        return None
    text = unescape(tag)
    framework = session_of(text)
    if framework is not None:
        return _memory_key("", "", framework)
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


def sort_key(
    key: FoundKey, found: dict[str, SessionFindings], by_tag: dict[str, SessionFindings]
) -> bool:
    """Add a key to what was found of its session; return False for a memory of nobody known."""
    if key.kind == "memory":
        owner = owner_of_memory(key.tag)
        of = None if owner is None else found.get(owner.session_id)
        # A session's id may look like a key of several parts.
        of = of or by_tag.get(key.tag)
        if of is not None:
            of.memories.append(key)
        return of is not None or not is_digest(key.tag)
    whose = by_tag.get(key.tag)
    if whose is not None and (key.kind in _OTHER_KINDS or class_of(key.kind) is not None):
        whose.keys.append(key)
    elif key.kind in _OF_TASKS:
        session_id = session_of_task(key.tag)
        if session_id in found:
            found[session_id].keys.append(key)
    return True
