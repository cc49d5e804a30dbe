"""Who is named by what is kept beside a session's tasks: keys of memories, and artifacts.

A host that saves its own tasks gives them no attributes. These say whose its sessions are.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from redis_state.archive.model import RecordKind, RecordPlace
from redis_state.archive.protocol import Archive
from redis_state.erasure.walking import FoundKey, KeyWalk, owner_of_memory
from redis_state.serialization import codec
from redis_state.store import RedisStateStore

_TOGETHER, _PAGE = 64, 500
# The two places of an artifact's reference: how a name goes on, and the field.
_PLACES: Final = {"blob:": "ref", "reference:": "document"}


class NamedUsers:
    """The users that memories and artifacts name, by session."""

    def __init__(self, store: RedisStateStore) -> None:
        self._store = store
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        self._seen: set[str] = set()
        # Of users the artifacts without a session, by their ids.
        self.without_session: defaultdict[str, set[str]] = defaultdict(set)

    async def look(self) -> None:
        """Read the names of all memories, and the references of all artifacts in Redis."""
        async for page in KeyWalk(self._store).all(["memory", "artifacts"]):
            fresh = [key for key in page if key.name not in self._seen]
            self._seen.update(key.name for key in fresh)
            for key in fresh:
                owner = owner_of_memory(key.tag) if key.kind == "memory" else None
                if owner is not None and owner.user_id:
                    self._users[owner.session_id].add(owner.user_id)
            await self._read([key for key in fresh if field_of(key) is not None])

    async def look_in(self, archive: Archive, user: str) -> None:
        """Read the archived references of all sessions that have one of a user."""
        # The two forms in which a document may have the name: see `codec`.
        forms = {codec.encode(user).removeprefix(b"\t"), json.dumps(user).encode()}
        for owner in await archive.owners_with(RecordKind.ARTIFACT, forms):
            after: RecordPlace | None = None
            while page := await archive.records(
                RecordKind.ARTIFACT, owner, after=after, limit=_PAGE
            ):
                for record in page:
                    self._add(record.data, owner)
                after = page[-1].place

    def of(self, user: str) -> set[str]:
        """Return the sessions that name a user."""
        return {session for session, users in self._users.items() if user in users}

    def with_others(self, user: str) -> set[str]:
        """Return the sessions that name another user, too or alone."""
        return {session for session, users in self._users.items() if users - {user}}

    async def _read(self, keys: Sequence[FoundKey]) -> None:
        commands = self._store.transport.commands
        for start in range(0, len(keys), _TOGETHER):
            some = keys[start : start + _TOGETHER]
            read = [commands.hget(key.name, field_of(key) or "") for key in some]
            for data in await asyncio.gather(*read):
                self._add(data or b"", None)

    def _add(self, data: bytes, owner: str | None) -> None:
        with suppress(ValueError):
            match codec.decode(data):
                case {"id": str(artifact), "scope": {"user_id": str(user), **scope}}:
                    self._add_scope(user, scope, owner, artifact)
                case _:
                    return

    def _add_scope(
        self, user: str, scope: Mapping[Any, Any], owner: str | None, artifact: str
    ) -> None:
        if not user:
            return
        session_id: Any = scope.get("session_id")
        if isinstance(session_id, str):
            self._users[session_id if owner is None else owner].add(user)
        else:
            self.without_session[user].add(artifact)


def names_user(key: FoundKey) -> bool:
    """Return whether a user's session may be found by a key."""
    if key.kind != "memory":
        return field_of(key) is not None
    owner = owner_of_memory(key.tag)
    return owner is not None and bool(owner.user_id)


def artifact_in(reference: bytes) -> str:
    """Read the id of an artifact; empty if it has none."""
    with suppress(ValueError):
        match codec.decode(reference):
            case {"id": str(artifact)}:
                return artifact
            case _:
                pass
    return ""


def field_of(key: FoundKey) -> str | None:
    """Return the field that has an artifact's reference; None of another key."""
    if key.kind != "artifacts":
        return None
    return next((name for begins, name in _PLACES.items() if key.rest.startswith(begins)), None)
