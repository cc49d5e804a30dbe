"""The list of open pauses: what waits for a decision, with the tokens that decide it.

The indexes only propose. Each proposed pause is read, and removed if it is not open any more. That
of a cancelled task is open again once the task is retried, and the task lists it again. A session's
list is in the slot of its tasks, so the step that removes one looks again whether it is open. The
list of all has a slot of its own: a sweeper lists there again what such a reader took off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from redis_state.errors import CorruptState, TokenUnknown
from redis_state.serialization import codec
from redis_state.serialization.rows import as_object
from redis_state.serialization.sealed import Sealed
from redis_state.store import RedisStateStore
from redis_state.stores.sessions.job_parts import JOB_FIELDS, job_in
from redis_state.transport.clock import ms_of
from redis_state.transport.commands import Commands
from redis_state.transport.keys import pause_id_of
from redis_state.worker.tasks.waitpoints.ballots import (
    Decider,
    Escalation,
    deciders_of,
    escalations_of,
)
from redis_state.worker.tasks.waitpoints.pause_list import (
    ListedPause,
    PauseList,
    PausePlace,
    list_place,
)
from redis_state.worker.tasks.waitpoints.pause_model import token_of
from redis_state.worker.tasks.waitpoints.pause_tokens import find_pause, token_member, tokens_of

Fields: TypeAlias = dict[str, Any]

_SLICE = 500
# How many are looked at to count them.
_MOST_READ = 10_000
# The fields that decide whether a pause is open, then its content.
_TOKEN_FIELDS = ("state", "task", "order", "opened", "expires", "timer")
_TASK_FIELDS = ("finished", "order")


@dataclass(frozen=True, slots=True)
class OpenPause:
    """A pause that may be decided now.

    ``pause_id`` names it for everybody and is what its CHECKPOINT update carries. It and ``token``
    are None for one that was not to be revealed. ``on_timeout`` is what happens at
    ``expires_at``: ``"fail"``, ``"reject"``, or ``"resume"`` with ``default``. ``schema`` is the
    form of an approval's value, a JSON schema. ``deciders`` are those who are named to decide it:
    none if nobody is. It needs so many ``approvals``. So many ``rejections`` reject it, or those
    that make the approvals impossible. Values of votes are not listed.
    """

    session_id: str
    task_id: str
    name: str
    reason: str
    payload: Any = field(repr=False)
    tags: tuple[str, ...]
    opened_at: datetime
    expires_at: datetime
    on_timeout: str
    default: Any = field(repr=False)
    token: str | None = field(repr=False)
    pause_id: str | None = None
    schema: dict[str, Any] | None = field(default=None, repr=False)
    approvals: int = 1
    rejections: int | None = None
    deciders: tuple[Decider, ...] = ()
    escalations: tuple[Escalation, ...] = ()

    def may_decide(self, actor: str) -> bool:
        """Return whether an actor may decide it now: is named and has no vote, or none is."""
        return not self.deciders or any(
            each.name == actor and each.state == "open" for each in self.deciders
        )


async def list_open_pauses(
    store: RedisStateStore,
    session_id: str | None = None,
    *,
    tag: str | None = None,
    decider: str | None = None,
) -> list[OpenPause]:
    """List the open pauses of a session, or of all, the first opened first."""
    wanted = wanted_pauses(tag, decider)
    found = [
        each.pause
        async for each in PauseReading(store, session_id).read()
        if each.pause is not None and wanted(each.pause)
    ]
    return sorted(found, key=lambda pause: (pause.opened_at, pause.task_id, pause.name))


def wanted_pauses(tag: str | None, decider: str | None) -> Callable[[OpenPause], bool]:
    """Return whether a pause has a tag, and whether an actor may decide it now."""
    return lambda pause: (
        (tag is None or tag in pause.tags) and (decider is None or pause.may_decide(decider))
    )


async def read_open_pause(store: RedisStateStore, token: str) -> OpenPause | None:
    """Return a pause by its token or its id; None if it is not open."""
    try:
        found = await find_pause(store, token)
    except TokenUnknown:
        return None
    return await PauseReading(store, found.session_id).one(found.key)


async def ages_of_open_pauses(store: RedisStateStore, *, most: int) -> list[float]:
    """Return for how many seconds each pause is open by now, of ``most`` of the oldest."""
    return await PauseReading(store, None).ages(most)


async def pauses_older_than(store: RedisStateStore, ages: Sequence[float]) -> Sequence[int]:
    """Count the open pauses by how long they are so; looks at 10,000 of them at most.

    One that a task has opened and does not wait for is open too; a task that waits for its
    children has none. All by the server's clock.
    """
    found = await ages_of_open_pauses(store, most=_MOST_READ)
    return [sum(1 for age in found if age > limit or limit == 0) for limit in ages]


class PlacedPause(NamedTuple):
    """A place of the list, and its pause; None if it is not open, or cannot be read."""

    place: PausePlace
    pause: OpenPause | None


class _Found(NamedTuple):
    """An open pause: the key and the fields of its token, those of its task, the time in ms."""

    key: str
    token: Fields
    task: Fields
    now: int


class PauseReading:
    """The open pauses of a session, or of all, by what is listed."""

    def __init__(self, store: RedisStateStore, session_id: str | None) -> None:
        self._store = store
        self._list = PauseList(store)
        self._session_id = session_id

    async def read(self) -> AsyncGenerator[PlacedPause, None]:
        """Yield the open pauses that can be read, in any order."""
        async for keys in self._slices():
            for each in await self._open_of(keys, whole=True):
                pause = self._pause(each.token, each.task)
                if pause is not None:
                    yield PlacedPause(list_place(int(each.token["opened"]), each.key), pause)

    async def places(self) -> list[ListedPause]:
        """Return the places of what is listed of a session, in any order.

        Those that only wait for time have none. Those that are gone are taken off the list.
        """
        found: list[ListedPause] = []
        async for keys in self._slices():
            names = ("opened", "timer")
            tokens = await self._tokens(keys, whole=False, names=names)
            gone: list[str] = []
            for key, token in tokens.items():
                if token["opened"] is None:
                    gone.append(key)
                elif token["timer"] is None:
                    found.append(ListedPause(list_place(int(token["opened"]), key), key))
            await self._remove(dict.fromkeys(gone))
        return found

    async def all_of(self, listed: Sequence[ListedPause]) -> list[PlacedPause]:
        """Return the pauses of places, in their order."""
        found: dict[str, OpenPause | None] = {}
        for start in range(0, len(listed), _SLICE):
            keys = [each.key for each in listed[start : start + _SLICE]]
            for each in await self._open_of(keys, whole=True):
                found[each.key] = self._pause(each.token, each.task)
        return [PlacedPause(each.place, found.get(each.key)) for each in listed]

    async def one(self, key: str) -> OpenPause | None:
        """Return the pause of a token's key if it is open."""
        found = await self._open_of([key], whole=True)
        return self._pause(found[0].token, found[0].task) if found else None

    async def ages(self, most: int) -> list[float]:
        """Return for how many seconds each is open, of some of the oldest."""
        found: list[float] = []
        async with aclosing(self._slices()) as slices:
            async for keys in slices:
                some = await self._open_of(keys, whole=False)
                found += [(each.now - int(each.token["opened"])) / 1000 for each in some]
                if len(found) >= most:
                    break
        return found[:most]

    async def _slices(self) -> AsyncGenerator[list[str], None]:
        """Yield the keys of the tokens that are listed."""
        if self._session_id is not None:
            keys = await tokens_of(self._store, self._session_id)
            for start in range(0, len(keys), _SLICE):
                yield keys[start : start + _SLICE]
            return
        place: PausePlace | None = None
        more = True
        while more:
            listed, more = await self._list.after(place, _SLICE)
            yield [each.key for each in listed]
            place = listed[-1].place if listed else place

    async def _open_of(self, keys: Sequence[str], *, whole: bool) -> list[_Found]:
        """Read the open ones of pauses, and take those off the list that are not open any more.

        ``whole`` tokens have all their fields, and their tasks the job.
        """
        if not keys:
            return []
        now = ms_of(await self._commands.time())
        tokens = await self._tokens(keys, whole=whole)
        owners = [token["task"] for token in tokens.values() if token["task"]]
        tasks = await self._tasks(owners, (*_TASK_FIELDS, *(JOB_FIELDS if whole else ())))
        found: list[_Found] = []
        closed: dict[str, tuple[str, str] | None] = {}
        for key, token in tokens.items():
            owner = _owner(token["task"]) if token["task"] else None
            task = tasks.get(owner) if owner else None
            if owner and task is None:
                continue
            if task is None or not _is_open(token, task):
                closed[key] = owner
            elif int(token["expires"]) > now and token["timer"] is None:
                found.append(_Found(key, token, task, now))
        await self._remove(closed)
        return found

    async def _tokens(
        self, keys: Sequence[str], *, whole: bool, names: Sequence[str] = _TOKEN_FIELDS
    ) -> dict[str, Fields]:
        """Read tokens by their keys. What is damaged is set aside, and stays on the list."""
        requested = [
            self._commands.hgetall(key) if whole else self._commands.hmget(key, *names)
            for key in keys
        ]
        command = "HGETALL" if whole else "HMGET"
        found: dict[str, Fields] = {}
        for key, answer in zip(keys, requested, strict=True):
            try:
                held = await self._store.base.scripts.read(answer, key, command=command)
                token = _whole(held) if whole else _fields(names, held)
                _check(token)
            except CorruptState as error:
                self._set_aside(key, codec.DecodeError(error.problem))
            except (ValueError, TypeError) as error:
                self._set_aside(key, error)
            else:
                found[key] = token
        return found

    def _set_aside(self, key: str, error: Exception) -> None:
        self._store.base.set_aside(key.rpartition(":")[2], "pause", b"", error)

    async def _remove(self, closed: Mapping[str, tuple[str, str] | None]) -> None:
        """Take tokens off the list. Those that are gone have no task."""
        if self._session_id is None:
            await self._list.remove(*closed)
            return
        keys, scripts = self._store.base.keys, self._store.base.scripts
        index = keys.tasks(self._session_id)
        await asyncio.gather(
            *(
                scripts.unlist_pause(keys.task(*owner), tasks=index, token=token)
                for token, owner in closed.items()
                if owner is not None
            )
        )
        gone = [token_member(token) for token, owner in closed.items() if owner is None]
        if gone:
            await scripts.zrem(index, *gone)

    async def _tasks(
        self, owners: Sequence[bytes], names: Sequence[str]
    ) -> dict[tuple[str, str], Fields]:
        keys = self._store.base.keys
        requested = {
            task: self._commands.hmget(keys.task(*task), *names)
            for task in {_owner(owner) for owner in owners}
        }
        found: dict[tuple[str, str], Fields] = {}
        for task, answer in requested.items():
            # What is none is not asked for anything: its pause stays on the list.
            with suppress(CorruptState):
                key = keys.task(*task)
                held = await self._store.base.scripts.read(answer, key, command="HMGET")
                found[task] = _fields(names, held)
        return found

    def _pause(self, token: Fields, task: Fields) -> OpenPause | None:
        session_id, task_id, entry = codec.decode(token["task"])

        def read() -> OpenPause:
            payloads = self._store.base.payloads
            about = payloads.as_object(token["payload"])
            secret = as_object(job_in([task[name] for name in JOB_FIELDS]) or b"")["secret"]
            seats: dict[bytes, bytes] = token["seats"]
            decides = token_of(session_id, secret, entry) if about["revealed"] else None
            return OpenPause(
                session_id=session_id,
                task_id=task_id,
                name=about["name"],
                reason=about["reason"],
                payload=about["payload"],
                tags=tuple(about.get("tags", ())),
                opened_at=_moment(token["opened"]),
                expires_at=_moment(token["expires"]),
                on_timeout=about.get("on_timeout", "fail"),
                default=about.get("default"),
                token=decides,
                pause_id=decides and pause_id_of(decides),
                schema=_schema(payloads.decode(seats[b"schema"])) if b"schema" in seats else None,
                approvals=int(seats.get(b"approvals", 1)),
                rejections=int(seats.get(b"rejections", 0)) or None,
                deciders=deciders_of(seats),
                escalations=escalations_of(seats),
            )

        place = f"pause {entry} of task {task_id}"
        return self._store.base.attempt(session_id, place, token["payload"] or b"", read)

    @property
    def _commands(self) -> Commands:
        return self._store.transport.commands


def _whole(flat: Sequence[bytes]) -> Fields:
    """Read a token with all its fields, those of its seats among them."""
    held = dict(zip(flat[::2], flat[1::2], strict=True))
    return {name: held.get(name.encode()) for name in (*_TOKEN_FIELDS, "payload")} | {"seats": held}


def _fields(names: Sequence[str], values: Sequence[Any]) -> Fields:
    return dict(zip(names, values, strict=True))


def _owner(owner: bytes) -> tuple[str, str]:
    session_id, task_id, _ = codec.decode(owner)
    return session_id, task_id


def _check(token: Fields) -> None:
    """Errors: ValueError, TypeError for what no token has."""
    if token.get("task"):
        _owner(token["task"])
    if token.get("state") == b"open":
        int(token["expires"])
        int(token["opened"])
    elif token["opened"] is not None:
        int(token["opened"])


def _schema(form: Any) -> dict[str, Any]:
    """Return a form; one that cannot be read here is an object of its own."""
    return {"sealed": form} if type(form) is Sealed else form


def _is_open(token: Fields, task: Fields) -> bool:
    """Return whether a pause is undecided, and of the present task of its id, not terminal."""
    if token["state"] != b"open" or task["finished"] == b"1":
        return False
    return bool(token["order"] == task["order"])


def _moment(milliseconds: bytes) -> datetime:
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC)
