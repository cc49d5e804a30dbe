"""ADK's `BaseSessionService`. An event with all that it changes is one step in the app's slot.

What ADK takes and gives is typed `Any` here: its package and the others' do not fit together in one
environment, so no checker of types sees it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from pydantic_core import to_jsonable_python

from redis_state import RedisStateStore, limits
from redis_state.errors import CorruptState, InvalidField
from redis_state.models.version import Version
from redis_state.primitives.listed import behind_a_write
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.record import Stored, new_write_id
from redis_state.primitives.signal import Row
from redis_state.scripts import AdkKeys, Reply, ReplyCode, raw
from redis_state.serialization import codec
from redis_state.serialization.fields import text
from redis_state.serialization.rows import pack, unpack
from redis_state.stores.base import ms
from redis_state.transport.key_text import entry_id
from redis_state.transport.keys import adk_member

MOST_EVENTS = 10_000
_NAME = "s:"

_sessions: Any = import_module("google.adk.sessions")
_base: Any = import_module("google.adk.sessions.base_session_service")
_errors: Any = import_module("google.adk.errors.already_exists_error")
_missing: Any = import_module("google.adk.errors.session_not_found_error")
_stale: Any = import_module("google.adk.errors._stale_session_error")
_event: Any = import_module("google.adk.events.event")
_clock: Any = import_module("google.adk.platform.time")
_ids: Any = import_module("google.adk.platform.uuid")


class RedisStateSessionService(_base.BaseSessionService):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Sessions, their events, and the state of apps, users and sessions.

    Every write is one atomic step, safe to repeat. Sessions live `agent_sessions_ttl` after their
    last event, and keep the newest ``max_events``. The state of a user and of an app lives as long
    as the newest of their sessions. States and events are encrypted with the store's
    `payload_keys`. Ids may be any text; blanks around a session's id do not count.
    """

    def __init__(self, store: RedisStateStore, *, max_events: int = MOST_EVENTS) -> None:
        self._of = store.base
        self._ttl_ms = ms(store.settings.agent_sessions_ttl)
        self._bounds = Bounds(limits.count("max_events", max_events), self._ttl_ms)
        # Agents that run side by side share a session: the second one must see the first's marker.
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Any:
        """Create a session. Errors: ADK's AlreadyExistsError, of one of many callers at most none.

        State of the app and the user is merged in the same step, or not at all. OutcomeUnknown if
        it is created, and the server is away before it is read.
        """
        given = (session_id or "").strip() or _ids.new_uuid()
        keys = self._keys(app_name, user_id, given)
        place = (b"place", pack([user_id, given]))
        reply = await self._write(
            keys, state or {}, expected=Version(0, ""), updated=_clock.get_time(), also=place
        )
        if reply.word is ReplyCode.STALE:
            raise _errors.AlreadyExistsError(f"Session with id {given} already exists.")
        with behind_a_write(self._of.scripts.transport.address):
            session = await self.get_session(app_name=app_name, user_id=user_id, session_id=given)
        if session is None:
            raise _missing.SessionNotFoundError(f"Session {given} not found.")
        return session

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: Any = None
    ) -> Any:
        """Return a session with its events in order, or None.

        The session, its events and its marker are of one moment. The states of the app and the user
        are of then or later. Errors: PayloadUnreadable, CorruptState.
        """
        keys = self._keys(app_name, user_id, session_id.strip())
        found = await self._of.records.load(keys.session)
        if found is None:
            return None
        # After the session: what its events have changed is in them.
        fetch = self._of.scripts.transport.commands.hgetall
        end = int(found.fields.get("end", 0))
        app, user, events = await asyncio.gather(
            fetch(keys.app), fetch(keys.user), self._events(keys, end, config)
        )
        return self._session(app_name, found, _flat(app), _flat(user), events)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> Any:
        """List the sessions of an app or a user without events, what was updated last at the end.

        Read in pages of 100.
        """
        keys, fetch = self._of.keys, self._of.scripts.transport.commands.hgetall
        index = (
            keys.adk_sessions(text("app_name", app_name))
            if user_id is None
            else keys.adk_sessions_of(text("app_name", app_name), text("user_id", user_id))
        )
        app = _flat(await fetch(keys.adk_app(app_name)))
        users: dict[str, dict[str, bytes]] = {}
        sessions: dict[str, Any] = {}
        async for members in self._of.records.pages(index):
            asked = [fetch(keys.adk_session_at(app_name, member)) for member in members]
            for member, flat in zip(members, await asyncio.gather(*asked), strict=True):
                fields = _flat(flat)
                if not fields:
                    continue
                owner, _ = unpack(fields["place"], 2)
                if owner not in users:
                    users[owner] = _flat(await fetch(keys.adk_user(app_name, owner)))
                version = Version(int(fields["version"]), fields["write"].decode())
                stored = Stored(version, int(fields["order"]), fields)
                sessions[member] = self._session(app_name, stored, app, users[owner], [])
        ordered = sorted(sessions.values(), key=lambda s: (s.last_update_time, s.user_id, s.id))
        return _base.ListSessionsResponse(sessions=ordered)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events, in one step. State of the user and the app stays."""
        keys = self._keys(app_name, user_id, session_id.strip())
        await self._of.scripts.delete_adk_session(keys)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return a user's state, without the prefix of its names."""
        key = self._of.keys.adk_user(text("app_name", app_name), text("user_id", user_id))
        flat = await self._of.scripts.transport.commands.hgetall(key)
        return self._state(f"user {user_id!r}", _flat(flat))

    async def append_event(self, session: Any, event: Any) -> Any:
        """Append an event and merge the states that it changes, in one step.

        The same event again is recognised by its id, and is not written twice. The session object
        gets it as if the first call had returned. Errors: ADK's StaleSessionError if the session
        was written since it was read, SessionNotFoundError, AlreadyExistsError for another event of
        this id; nothing is written then.
        """
        if event.partial:
            return event
        keys = self._keys(session.app_name, session.user_id, session.id)
        async with self._locks.setdefault(keys.session, asyncio.Lock()):
            self._apply_temp_state(session, event)
            event = self._trim_temp_delta_state(event)
            try:
                plain = event.model_dump(mode="json", exclude_none=True)
            except ValueError:
                raise InvalidField("event", "bytes in a state must be UTF-8") from None
            row = self._of.payloads.write(plain, field="event")
            expected, write = await self._expected(keys, session), new_write_id()
            reply = await self._write(
                keys,
                event.actions.state_delta or {},
                expected=expected,
                updated=event.timestamp,
                write=write,
                row=(entry_id("event.id", event.id), row),
            )
            if reply.word is ReplyCode.AGAIN:
                await self._same(keys, event)
                return self._adopt(session, event, expected, reply)
            if reply.word is ReplyCode.MISSING:
                raise _missing.SessionNotFoundError(f"Session {session.id} not found.")
            if reply.word is ReplyCode.STALE:
                raise _stale.StaleSessionError(_changed(session))
            return self._commit(session, event, Version(reply.facts[0], write))

    def _commit(self, session: Any, event: Any, version: Version) -> Any:
        session.last_update_time = event.timestamp
        session._storage_update_marker = _marker(version)  # noqa: SLF001
        return self._commit_event_to_session(session, event)

    def _adopt(self, session: Any, event: Any, expected: Version, reply: Reply) -> Any:
        """Commit an event that an earlier call has written, and whose reply was lost.

        Only if that was the one write since the session was read: with others it stays stale.
        """
        number, newest = reply.version, reply.facts[2]
        if (
            newest
            and number == expected + 1
            and all(each.id != event.id for each in session.events)
        ):
            return self._commit(session, event, number)
        return event

    async def _write(
        self,
        keys: AdkKeys,
        state: Mapping[str, Any],
        *,
        expected: Version,
        updated: float,
        write: str = "",
        row: tuple[bytes, bytes] = (b"", b""),
        also: Sequence[bytes] = (),
    ) -> Reply:
        parts: dict[str, list[bytes]] = {"app": [], "user": [], "session": [*also]}
        prefixes = (("app", _sessions.State.APP_PREFIX), ("user", _sessions.State.USER_PREFIX))
        for name, value in state.items():
            if name.startswith(_sessions.State.TEMP_PREFIX):
                continue
            scope, prefix = next((of for of in prefixes if name.startswith(of[1])), ("session", ""))
            try:
                plain = to_jsonable_python(value, fallback=str)
            except ValueError:
                raise InvalidField(f"state {name!r}", "bytes must be UTF-8") from None
            written = self._of.payloads.write(plain, field=f"state {name!r}")
            parts[scope] += (raw(_NAME + name.removeprefix(prefix)), written)
        return await self._of.scripts.write_adk_session(
            keys,
            expected=expected,
            write=write or new_write_id(),
            updated=repr(float(updated)),
            ttl_ms=self._ttl_ms,
            max_rows=self._bounds.max_rows,
            row_id=row[0],
            row=row[1],
            of_session=parts["session"],
            of_user=parts["user"],
            of_app=parts["app"],
        )

    async def _expected(self, keys: AdkKeys, session: Any) -> Version:
        """Return the revision that a session was read at, or was made to look like."""
        marker = session._storage_update_marker  # noqa: SLF001
        if marker is not None:
            number, _, write = marker.partition(" ")
            return Version(int(number), write)
        found = await self._of.records.load(keys.session)
        if found is None:
            raise _missing.SessionNotFoundError(f"Session {session.id} not found.")
        last = entry_id("event.id", session.events[-1].id) if session.events else None
        is_later = float(found.fields["updated"]) > session.last_update_time
        if is_later and last != found.fields.get("last"):
            raise _stale.StaleSessionError(_changed(session))
        return found.version

    async def _same(self, keys: AdkKeys, event: Any) -> None:
        """Check that the event that is there is this one."""
        row = await self._log(keys).get(entry_id("event.id", event.id))
        if row is not None and self._read(keys, row) != event:
            raise _errors.AlreadyExistsError(f"Another event with id {event.id} already exists.")

    async def _events(self, keys: AdkKeys, end: int, config: Any) -> list[Any]:
        newest = None if config is None else config.num_recent_events
        log = self._log(keys)
        rows = await log.read_all() if newest is None else await self._newest(log, newest, end)
        # What was appended since the session was read is left out.
        events = [self._read(keys, row) for row in rows if row.n <= end]
        since = None if config is None else config.after_timestamp
        return [event for event in events if since is None or event.timestamp >= since]

    async def _newest(self, log: Log, newest: int, end: int) -> list[Row]:
        """Read the newest rows up to a number, however many came after it."""
        count = newest
        while True:
            rows = await log.tail(count=count)
            later = sum(row.n > end for row in rows)
            if len(rows) < count or count - later >= newest:
                return rows
            count = newest + later

    def _read(self, keys: AdkKeys, row: Row) -> Any:
        data = self._of.payloads.open(row.data, of=f"session {keys.session!r}", field="event")
        try:
            return _event.Event.model_validate(codec.decode(data))
        except ValueError as error:
            # An event less would change what the agent does. The text of the error quotes it.
            raise CorruptState(keys.rows, f"event {row.n}: {type(error).__name__}") from None

    def _session(
        self,
        app_name: str,
        found: Stored,
        app: Mapping[str, bytes],
        user: Mapping[str, bytes],
        events: list[Any],
    ) -> Any:
        user_id, session_id = unpack(found.fields["place"], 2)
        state = self._state(f"session {session_id!r}", found.fields)
        prefixes = _sessions.State.APP_PREFIX, _sessions.State.USER_PREFIX
        for prefix, fields in zip(prefixes, (app, user), strict=True):
            shared = self._state(f"session {session_id!r}", fields)
            state |= {prefix + name: value for name, value in shared.items()}
        session = _sessions.Session(
            app_name=app_name,
            user_id=user_id,
            id=session_id,
            state=state,
            events=events,
            last_update_time=float(found.fields["updated"]),
        )
        session._storage_update_marker = _marker(found.version)  # noqa: SLF001
        return session

    def _state(self, of: str, fields: Mapping[str, bytes]) -> dict[str, Any]:
        names = [field for field in fields if field.startswith(_NAME)]
        opened = self._of.payloads.open
        return {
            name.removeprefix(_NAME): codec.decode(opened(fields[name], of=of, field="state"))
            for name in names
        }

    def _log(self, keys: AdkKeys) -> Log:
        return Log(self._of.scripts, keys.events, self._bounds)

    def _keys(self, app_name: str, user_id: str, session_id: str) -> AdkKeys:
        if not text("session_id", session_id):
            raise InvalidField("session_id", "must not be empty")
        keys, member = self._of.keys, adk_member(user_id, session_id)
        return AdkKeys(
            session=keys.adk_session_at(app_name, member),
            user=keys.adk_user(app_name, user_id),
            app=keys.adk_app(app_name),
            index=keys.adk_sessions(app_name),
            own=keys.adk_sessions_of(app_name, user_id),
            events=keys.adk_events(app_name, member),
            member=member,
        )


def _flat(reply: list[bytes]) -> dict[str, bytes]:
    names = [name.decode("utf-8", "surrogatepass") for name in reply[::2]]
    return dict(zip(names, reply[1::2], strict=True))


def _marker(version: Version) -> str:
    return f"{version:d} {version.write}"


def _changed(session: Any) -> str:
    return (
        f"Session {session.id} has been modified in storage since it was loaded. "
        "Reload it before appending more events."
    )
