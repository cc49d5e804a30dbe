"""The sessions of agents on Redis: saved at a version, written by what is new, listed by page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, Protocol

from pydantic import SecretStr

from redis_state import limits
from redis_state.agents.state.ids import check_session_id
from redis_state.agents.state.session import AgentSession, SessionHeader, SessionStatus
from redis_state.agents.state.wire.kinds import instance, integer, moment, text
from redis_state.agents.state.wire.wire import now
from redis_state.agents.storage.protection import Protect, protection_for
from redis_state.agents.storage.raw import RawSession
from redis_state.agents.storage.session_encoding import (
    Found,
    PartLists,
    StoredImage,
    change_of,
    read_header,
    read_session,
)
from redis_state.errors import (
    ConfigError,
    CorruptState,
    InvalidField,
    LeaseLost,
    SessionConflict,
    SessionNotFound,
)
from redis_state.primitives.record import Place, new_write_id
from redis_state.scripts import Fence, Reply, ReplyCode
from redis_state.serialization import codec
from redis_state.stores.archive_list import agent_session_entry, record_list
from redis_state.stores.base import Base, ms
from redis_state.transport.commands import Commands
from redis_state.transport.key_text import escape
from redis_state.transport.keys import AGENT_SHARDS, agent_shard

_CURSOR = re.compile(r"[0-9]{16}:[a-zA-Z0-9][a-zA-Z0-9_-]*")
_WRITE = re.compile(r"[^\s:]+")
_EPOCH = datetime.fromtimestamp(0, UTC)
_MOST = 1_000
_AT_ONCE = 100
# A worker must come by before it expires.
_LEAST_ARCHIVED_MS = 2 * 3_600_000


class HasBase(Protocol):
    """A store, as far as a session store needs one: RedisStateStore is one."""

    @property
    def base(self) -> Base:
        """The parts that a store is made of."""
        ...


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Headers, the newest session's first; ``cursor`` reads on; ``at_end``: there are no more."""

    headers: tuple[SessionHeader, ...]
    cursor: str | None
    at_end: bool


class SessionStore:
    """Create, save, load and list sessions, shared by any number of processes.

    ``protect`` says what the server gets to see of a model's ``apiKey``: "keep" stores it,
    "redact" does not, "encrypt" stores it under ``encryption_key`` (Fernet, extra ``crypto``).
    ``lifetime`` is how long a session is kept after its last save, else `agent_sessions_ttl`.
    No I/O. Errors: ConfigError.
    """

    def __init__(
        self,
        store: HasBase,
        *,
        protect: Protect = "keep",
        encryption_key: SecretStr | None = None,
        lifetime: timedelta | None = None,
    ) -> None:
        self._base = store.base
        self._protection = protection_for(protect, encryption_key)
        if lifetime is None:
            lifetime = self._base.settings.agent_sessions_ttl
        with limits.options():
            self.lifetime: timedelta = limits.lifetime("lifetime", lifetime)
        self._ttl_ms = ms(self.lifetime)
        self._archived = record_list(self._base, "agent_sessions")
        if self._archived is not None and self._ttl_ms < _LEAST_ARCHIVED_MS:
            raise ConfigError("lifetime: an archive needs 2 hours at least")

    @property
    def base(self) -> Base:
        """The parts that it is made of."""
        return self._base

    async def create(
        self, session: AgentSession, *, write: str | None = None, fence: Fence | None = None
    ) -> AgentSession:
        """Store a new session at version 1 and return it so.

        Atomic. The same ``write`` repeated gets the same answer, for sixteen versions: name one if
        you will ask again after OutcomeUnknown. Errors: SessionConflict if there is one, or for a
        version above 0.
        """
        if _version_of(session) != 0:
            actual = await self._version(session.session_id)
            raise SessionConflict(session.session_id, expected=session.version, actual=actual)
        return await self._write(session, None, write, fence)

    async def save(
        self, session: AgentSession, *, write: str | None = None, fence: Fence | None = None
    ) -> AgentSession:
        """Save a session over the version that it was loaded at; return it at the next.

        Atomic. Only new parts are sent: a step, not the history. The given session does not change.
        ``write`` as in `create`. Errors: SessionConflict at any other version, or if the id was
        deleted and created again; SessionNotFound; LeaseLost under a stale fence.
        """
        if _version_of(session) < 1:
            raise SessionConflict(
                session.session_id, expected=0, actual=await self._version(session.session_id)
            )
        image = session.stored
        known = image if isinstance(image, StoredImage) and image.is_base_of(session) else None
        return await self._write(session, known, write, fence)

    async def load(self, session_id: str) -> AgentSession | None:
        """Return a session, or None. Its steps and messages are read when they are looked at.

        Errors: ConfigError if its key cannot be decrypted; CorruptState, and then `raw` gives all
        that is stored.
        """
        key = self._key(session_id)
        flat = await self._base.fetch(key)
        if not flat:
            return None
        found, write = self._read(key, dict(zip(flat[::2], flat[1::2], strict=True)))
        # One that was stored under less protection is written again by the next save.
        return _remembering(found.session, write, found.parts, sealed=found.sealed)

    def read(self, session_id: str, fields: Mapping[bytes, bytes]) -> AgentSession:
        """Read the fields of a session that was archived. No I/O. Errors: as `load`.

        To continue it, store a session that is `forked` from it.
        """
        return self._read(self._key(session_id), fields)[0].session

    def _read(self, key: str, fields: Mapping[bytes, bytes]) -> tuple[Found, str]:
        try:
            return read_session(fields, self._protection), fields[b"write"].decode()
        except KeyError as missing:
            raise CorruptState(key, f"{missing.args[0].decode()} is missing") from None
        except (InvalidField, codec.DecodeError) as error:
            # Their texts name a place, never what stands there.
            raise CorruptState(key, str(error)) from None

    async def raw(self, session_id: str) -> RawSession | None:
        """Return a session as it is stored, or None. Its content is not decoded: it may be damaged.

        Its ``problems`` list what cannot be read. Its ``to_dict`` returns all that is there, to be
        repaired and stored again.
        """
        flat = await self._base.fetch(self._key(session_id))
        names = (name.decode("utf-8", "backslashreplace") for name in flat[::2])
        fields = dict(zip(names, flat[1::2], strict=True))
        return RawSession(session_id, fields) if fields else None

    async def get(self, session_id: str) -> AgentSession:
        """Return a session. Errors: SessionNotFound; else as `load`."""
        found = await self.load(session_id)
        if found is None:
            raise SessionNotFound(session_id)
        return found

    async def header(self, session_id: str) -> SessionHeader | None:
        """Return a session's header alone, or None."""
        data = await self._commands.hget(self._key(session_id), "header")
        try:
            return None if data is None else read_header(data)
        except (InvalidField, codec.DecodeError) as error:
            raise CorruptState(self._key(session_id), str(error)) from None

    async def status(self, session_id: str) -> SessionStatus | None:
        """Return a session's status, or None."""
        header = await self.header(session_id)
        return header.status if header else None

    async def exists(self, session_id: str) -> bool:
        """Return whether there is a session."""
        return bool(await self._commands.exists(self._key(session_id)))

    async def delete(self, session_id: str) -> bool:
        """Delete a session, whatever its version; return whether there was one. A save is refused
        from then on, and its id can be created again. A repetition after a lost reply leaves a
        session that another process created meanwhile.
        """
        reply = await self._base.scripts.delete_session(
            self._key(session_id),
            index=self._index(session_id),
            expiries=self._expiries(session_id),
            session_id=session_id,
        )
        return int(reply.facts[0]) == 1

    async def fork(self, session_id: str, *, as_id: str | None = None) -> AgentSession:
        """Create a session that begins with all that another knows, between executions.

        Errors: SessionNotFound; SessionConflict if ``as_id`` is taken.
        """
        source = await self.get(session_id)
        return await self.create(source.forked(as_id))

    async def list_headers(
        self,
        *,
        status: SessionStatus | None = None,
        agent_name: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> SessionPage:
        """Return up to ``limit`` headers, the session created last first, and a cursor.

        Costs the page, whatever there is besides: no state is touched. A walk through all pages
        meets each session that is there all the while once; what is created meanwhile comes
        before its first page. Errors: InvalidField for a limit below 1, or a bad cursor.
        """
        if limits.count("limit", limit) > _MOST:
            raise InvalidField("limit", f"must be from 1 to {_MOST}")
        if after is not None and not _CURSOR.fullmatch(after):
            raise InvalidField("after", "is no cursor of a listing")
        tag = _tag(status, agent_name)
        headers: list[SessionHeader] = []
        wanted = limit
        while True:
            places = await self._places(tag, after, wanted)
            for place, header in zip(places, await self._headers(tag, places), strict=True):
                after = place
                headers += [header] if header else []
                if len(headers) == limit:
                    return SessionPage(tuple(headers), after, at_end=False)
            if not places:
                return SessionPage(tuple(headers), after, at_end=True)
            # Some have expired, and where there are some there are many.
            wanted = max(limit - len(headers), _AT_ONCE)

    async def _write(
        self,
        session: AgentSession,
        known: StoredImage | None,
        write: str | None,
        fence: Fence | None,
    ) -> AgentSession:
        header = session.header.changed(version=session.version + 1, updated_at=now())
        change = change_of(session, header, known, self._protection)
        write = new_write_id() if write is None else write
        if not _WRITE.fullmatch(text.check(write, "write")):
            raise InvalidField("write", "text without spaces and colons is needed")
        born = moment.read(moment.write(header.created_at), "header.createdAt")
        save = partial(
            self._base.scripts.save_session,
            self._key(session.session_id),
            change.fields,
            index=self._index(session.session_id),
            expiries=self._expiries(session.session_id),
            session_id=session.session_id,
            tags=" ".join(_tags(header)),
            # In seconds: some languages write no more of a date.
            born=str(int((born - _EPOCH).total_seconds())),
            expected=session.version,
            base=known.write if known else "",
            dropped=change.dropped,
            write=write,
            ttl_ms=self._ttl_ms,
            fence=fence,
        )
        if self._archived is None:
            reply = await save()
        else:
            reply = await self._archived.covering(agent_session_entry(session.session_id), save)
        _refuse(reply, session, fence)
        return _remembering(session.changed(header=header), write, change.parts)

    async def _places(self, tag: str, after: str | None, count: int) -> list[str]:
        """Find where the next sessions of a listing stand: ``<created>:<id>``, the last first."""
        start = f"({tag}:{after}" if after else f"({tag};"  # ';' comes after ':'
        replies: Any = await asyncio.gather(
            *(
                self._commands.zrevrange_by_lex(index, start, f"[{tag}:", count=count)
                for index in map(self._base.keys.agent_sessions, range(AGENT_SHARDS))
            )
        )
        found = merge(*replies, reverse=True)
        return [member.decode()[len(tag) + 1 :] for member in islice(found, count)]

    async def _headers(self, tag: str, places: Sequence[str]) -> list[SessionHeader | None]:
        """Read headers by their places; None for one that has expired, or is damaged."""
        ids = [place.partition(":")[2] for place in places]
        found = await asyncio.gather(
            *(self._commands.hmget(self._key(i), "header", "created") for i in ids)
        )
        headers: list[SessionHeader | None] = []
        gone: list[tuple[str, Place]] = []
        for session_id, place, (data, created) in zip(ids, places, found, strict=True):
            if data is None:
                # It has expired: a later save removes its entry in the listing.
                gone.append((session_id, Place(self._index(session_id), f"{tag}:{place}")))
            if data is None or created.decode() != place.partition(":")[0]:
                headers.append(None)  # what is there now stands elsewhere
                continue
            read = partial(read_header, data)
            headers.append(self._base.attempt(session_id, "header", data, read))
        await asyncio.gather(
            *(self._base.records.forget(self._key(i), place=place) for i, place in gone)
        )
        return headers

    async def _version(self, session_id: str) -> int:
        return int(await self._commands.hget(self._key(session_id), "version") or 0)

    @property
    def _commands(self) -> Commands:
        return self._base.scripts.transport.commands

    def _key(self, session_id: str) -> str:
        return self._base.keys.agent_session(check_session_id(session_id))

    def _index(self, session_id: str) -> str:
        return self._base.keys.agent_sessions(agent_shard(session_id))

    def _expiries(self, session_id: str) -> str:
        return self._base.keys.agent_expiries(agent_shard(session_id))


def _version_of(session: AgentSession) -> int:
    checked: AgentSession = instance(AgentSession)(session, "session")
    header: SessionHeader = instance(SessionHeader)(checked.header, "header")
    return int(integer.check(header.version, "header.version"))


def _remembering(
    session: AgentSession, write: str, parts: PartLists, *, sealed: bool = True
) -> AgentSession:
    definition = session.definition if sealed else None
    return session.remembering(
        StoredImage(session.session_id, session.version, write, definition, parts)
    )


def _refuse(reply: Reply, session: AgentSession, fence: Fence | None) -> None:
    session_id, expected = session.session_id, session.version
    match reply.word:
        case ReplyCode.STALE:
            raise SessionConflict(session_id, expected=expected, actual=int(reply.facts[0]))
        case ReplyCode.MISSING:
            raise SessionNotFound(session_id)
        case ReplyCode.AGAIN:
            raise SessionConflict(session_id, expected=expected, actual=0)
        case ReplyCode.LOST:
            epoch = fence.epoch if fence else 0
            raise LeaseLost(f"session {session_id!r}", epoch=epoch, current=int(reply.facts[0]))
        case _:
            return


def _tags(header: SessionHeader) -> list[str]:
    status, name = header.status, header.agent_name
    return [_tag(None, None), _tag(status, None), _tag(None, name), _tag(status, name)]


def _tag(status: SessionStatus | None, agent_name: str | None) -> str:
    """Return the prefix of one of a session's lists. Escaped, so that none runs into another."""
    written = "" if status is None else status.value
    return f"{written}/" if agent_name is None else f"{written}/{escape('agent_name', agent_name)}"
