"""A `Session` of the SDK in Redis: an append-only log of items, and one run at a time.

An item is a row. A row that takes an item away names it, so both leave in one step and neither is
lost to another process. All writes are under the session's claim, a lease: a process that stood
still is refused after another one has taken the session over.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, cast

from agents import TResponseInputItem
from agents.memory import SessionABC
from agents.memory.session_settings import (
    SessionSettings,
    coerce_session_settings,
    resolve_session_limit,
)

from redis_state import RedisStateStore, limits
from redis_state.errors import InvalidField, LeaseLost, SessionBusy
from redis_state.primitives.lease import HeldLease, Leases, Renewal, new_owner
from redis_state.primitives.log.log import Log
from redis_state.primitives.log.rows import Bounds
from redis_state.primitives.signal import Row
from redis_state.scripts import Fence, LogLimits, ReplyCode
from redis_state.serialization import codec
from redis_state.serialization.fields import text
from redis_state.stores.base import ms

T = TypeVar("T")

MOST_ITEMS = 10_000
# Of a change's step, and of one that takes away or replaces.
_MOST_ROWS, _MOST_REPLACED = 64, 1_000
_MOST_CHANGES = 1_000
# Older releases cleared with a row.
_POPPED, _CLEARED = b"pop:", b"clear:"
_MOST_WRAPPERS = 8
# The roles of items with which a conversation may begin.
_BEGIN = ("user", "system", "developer")
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.01, 0.2


@dataclass(eq=False)
class _Claim:
    """A lease, and how many are in it: its block, and the runs and writes that began in the block.

    The last one to leave gives it back. A task of asyncio that began in the block may outlive it.
    """

    lease: HeldLease
    renewal: Renewal | None = None
    inside: int = 1


@dataclass(frozen=True, slots=True)
class _Entered:
    """A block that was entered, and what it was entered from: a block in a block has its claim."""

    claim: _Claim
    outer: Mapping[tuple[int, str], _Entered]


# By the store and the key of the lease. The SDK's asyncio tasks have a copy of the context.
_ENTERED: ContextVar[Mapping[tuple[int, str], _Entered]] = ContextVar(
    "redis_state_openai_sessions", default=MappingProxyType({})
)


class RedisStateSession(SessionABC):
    """The items of a conversation, for `Runner.run(session=...)`.

    `Runner.run` and `run_sync` run an agent in the session's block, ``async with session:``, and no
    other run is in it meanwhile. Entering waits up to ``wait_s`` for its turn. In the block every
    write is refused once the claim is lost. Outside of it each write takes the claim for itself:
    put a block around `Runner.run_streamed`. A claim of a process that died is free after
    ``lease_s``.

    The newest ``max_items`` are kept for the store's `memory_ttl` after the last write, encrypted
    with its `payload_keys`. Two sessions of one id in one namespace are one. Errors: InvalidField.
    """

    def __init__(
        self,
        session_id: str,
        *,
        store: RedisStateStore,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        lease_s: float = 30.0,
        wait_s: float = 60.0,
        max_items: int = MOST_ITEMS,
    ) -> None:
        if not text("session_id", session_id):
            raise InvalidField("session_id", "must not be empty")
        settings = SessionSettings() if session_settings is None else session_settings
        self.session_id: str = session_id
        self.session_settings: SessionSettings | None = coerce_session_settings(settings)
        self._duration_ms = round(limits.seconds("lease_s", lease_s) * 1000)
        self._wait_s = limits.patience("wait_s", wait_s, least=0.0)
        base, ttl_ms = store.base, ms(store.settings.memory_ttl)
        self._base = base
        self._key = base.keys.conversation_lease(session_id)
        self._place = (id(base), self._key)
        self._leases = Leases(base.scripts, keep_ms=ttl_ms)
        bounds = Bounds(limits.count("max_items", max_items), ttl_ms)
        self._log = Log(base.scripts, base.keys.conversation(session_id), bounds)

    async def __aenter__(self) -> Self:
        """Claim the session, or stay in the block of the caller, such as that of `Runner.run`.

        Errors: SessionBusy if another run has it for all of ``wait_s``.
        """
        claim = self._joined()
        if claim is None:
            lease, ms = await self._take(), self._duration_ms
            claim = _Claim(lease, self._leases.keep(lease, duration_ms=ms, on_lost=_refused_later))
        outer = _ENTERED.get()
        _ENTERED.set({**outer, self._place: _Entered(claim, outer)})
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = _ENTERED.get()[self._place]
        _ENTERED.set(entered.outer)
        await self._leave(entered.claim)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None, None]:
        """Enter the session's block, or stay in the one that the caller is in.

        Errors: SessionBusy.
        """
        async with self:
            yield

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest ``limit`` items in order; all without one.

        A limit of the session's settings holds if none is given. An item that cannot be read is
        left out, and kept aside. Errors: PayloadUnreadable.
        """
        limit = resolve_session_limit(limit, self.session_settings)
        if limit is not None and limit <= 0:
            return []
        return [item for _, item in await self._newest(limit)]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items, in order, in one step for each 64. Errors: SessionBusy, LeaseLost."""
        rows = self._rows(secrets.token_urlsafe(12), items)
        if rows:
            await self._claimed(lambda fence: self._log.append(rows, fence=fence))

    async def change_once(
        self,
        name: str,
        *,
        items: Sequence[TResponseInputItem],
        pops: int = 0,
        clears: bool = False,
    ) -> None:
        """Take so many items away, or all, and add others: once for each name.

        One step takes away up to 1,000, and one adds up to 64. A repetition, also after a crash in
        between, completes it. What was added or taken away since stays so, unless more than 1,000
        are to be taken away. The newest 1,000 names are known. Errors: InvalidField for an item
        that is no object; SessionBusy, LeaseLost.
        """
        rows = self._rows(name, items)
        if not rows and not pops and not clears:
            return
        pops = 0 if clears else pops
        most = self._log.bounds.max_rows

        async def change(fence: Fence) -> None:
            # A step has the same part of the items, and takes as many away, in each repetition. One
            # takes all of these away if it can: the next would take what others added meanwhile.
            start, end = 0, max(pops + len(rows), 1)
            while start < end:
                left = pops - start
                size = min(max(_MOST_ROWS, min(left, _MOST_REPLACED)), most)
                marks = await self._marks(name, start, min(left, size))
                some = rows[max(-left, 0) : max(size - left, 0)]
                await self._change(
                    f"{name}:{start}", [*marks, *some], clears=clears and not start, fence=fence
                )
                start += size

        await self._claimed(change)

    async def _marks(self, name: str, start: int, count: int) -> list[tuple[bytes, bytes]]:
        """Return the rows of a change that take so many of the newest items away.

        Those that an earlier step has taken away stand no more.
        """
        taken = await self._newest(count) if count > 0 else []
        return [
            (_POPPED + f"{name}:pop{number}".encode(), row_id)
            for number, (row_id, _) in enumerate(reversed(taken), start=start)
        ]

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it, or None if there is none.

        Of several callers each gets another item. Errors: SessionBusy, LeaseLost.
        """
        return await self._claimed(self._pop)

    async def clear_session(self) -> None:
        """Remove all items. Errors: SessionBusy, LeaseLost."""
        name = secrets.token_urlsafe(12)
        await self._claimed(lambda fence: self._change(f"{name}:0", [], clears=True, fence=fence))

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items in one step; return whether that was done.

        The SDK's compaction calls it where there is one. Else it clears and then adds, and a crash
        in between loses the conversation. A subclass that keeps items otherwise is not bypassed.
        """
        own = (
            getattr(type(self), name) is getattr(RedisStateSession, name)
            for name in ("get_items", "add_items", "clear_session")
        )
        if len(items) > min(_MOST_REPLACED, self._log.bounds.max_rows) or not all(own):
            return False
        name = secrets.token_urlsafe(12)
        rows = self._rows(name, items)
        await self._claimed(lambda fence: self._change(f"{name}:0", rows, clears=True, fence=fence))
        return True

    async def _change(
        self,
        name: str,
        rows: Sequence[tuple[bytes, bytes]],
        *,
        clears: bool,
        fence: Fence,
    ) -> None:
        """Change the log in one step, once for its name."""
        bounds = self._log.bounds
        reply = await self._base.scripts.change_log(
            self._log.keys,
            LogLimits(bounds.max_rows, bounds.ttl_ms, announce=False),
            changes=self._base.keys.conversation_changes(self.session_id),
            name=name,
            most=_MOST_CHANGES,
            clears=clears,
            rows_in=[part for row in rows for part in row],
            fence=fence,
        )
        if reply.word is ReplyCode.LOST:
            what = f"session {self.session_id!r}"
            raise LeaseLost(what, epoch=fence.epoch, current=int(reply.facts[0]))

    async def _pop(self, fence: Fence) -> TResponseInputItem | None:
        for row_id, item in await self._newest(1):
            await self._log.add((_POPPED + row_id, row_id), fence=fence)
            return item
        return None

    async def _newest(self, limit: int | None) -> list[tuple[bytes, TResponseInputItem]]:
        """Read the newest items with the ids of their rows, oldest first."""
        count = 0 if limit is None else 2 * limit + 16
        while True:
            rows = await self._log.tail(count=count) if count else await self._log.read_all()
            found = self._standing(rows)
            if limit is None:
                # A full log has dropped its oldest rows, maybe a call whose output is still there.
                return found if len(rows) < self._log.bounds.max_rows else _from_a_message(found)
            if len(found) >= limit or len(rows) < count:
                return found[-limit:]
            count *= 4

    def _standing(self, rows: Sequence[Row]) -> list[tuple[bytes, TResponseInputItem]]:
        """Return the items of rows that were not taken away."""
        popped = {row.data for row in rows if row.id.startswith(_POPPED)}
        found: list[tuple[bytes, TResponseInputItem]] = []
        for row in rows:
            if row.id.startswith(_CLEARED):
                found = []
            elif not row.id.startswith(_POPPED) and row.id not in popped:
                item = self._read(row)
                if item is not None:
                    found.append((row.id, item))
        return found

    def _rows(self, name: str, items: Sequence[TResponseInputItem]) -> list[tuple[bytes, bytes]]:
        return [
            (f"{name}:{number}".encode(), self._write(number, item))
            for number, item in enumerate(items)
        ]

    def _write(self, number: int, item: TResponseInputItem) -> bytes:
        if not isinstance(item, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("items", f"item {number}: an object is needed")
        return self._base.payloads.seal(codec.encode(dict(item)))

    def _read(self, row: Row) -> TResponseInputItem | None:
        of = f"session {self.session_id!r}"
        data = self._base.payloads.open(row.data, of=of, field="item")

        def read(_: Row) -> TResponseInputItem:
            item = codec.decode(data)
            if not isinstance(item, dict):
                raise codec.DecodeError("an item that is no object")
            return cast("TResponseInputItem", item)

        return self._base.read_row(self.session_id, "item", row, read)

    async def _claimed(self, change: Callable[[Fence], Awaitable[T]]) -> T:
        """Change something under the claim of the block, or else under one of its own."""
        claim = self._joined() or _Claim(await self._take())
        try:
            return await change(claim.lease.fence)
        finally:
            await self._leave(claim)

    def _joined(self) -> _Claim | None:
        """Enter the claim of the caller's block. None without one, or if all have left it."""
        entered = _ENTERED.get().get(self._place)
        if entered is None or not entered.claim.inside:
            return None
        entered.claim.inside += 1
        return entered.claim

    async def _leave(self, claim: _Claim) -> None:
        claim.inside -= 1
        if claim.inside:
            return
        if claim.renewal is not None:
            claim.renewal.stop()
        await self._leases.give_back(claim.lease)

    async def _take(self) -> HeldLease:
        loop, owner = asyncio.get_running_loop(), new_owner()
        give_up_at, wait_s = loop.time() + self._wait_s, _SHORTEST_WAIT_S
        while True:
            held = await self._leases.acquire(self._key, duration_ms=self._duration_ms, owner=owner)
            if held is not None:
                return held
            left_s = give_up_at - loop.time()
            if left_s <= 0:
                raise SessionBusy(self.session_id)
            await asyncio.sleep(min(left_s, wait_s * random.uniform(0.5, 1.0)))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def __repr__(self) -> str:
        return f"<RedisStateSession {self.session_id!r}>"


def turn_in(session: object) -> AbstractAsyncContextManager[None]:
    """Return the turn in a `RedisStateSession`, also in one that sessions of the SDK wrap."""
    found = session_in(session)
    return nullcontext() if found is None else found.turn()


def session_in(session: object) -> RedisStateSession | None:
    """Return a `RedisStateSession`, also one that sessions of the SDK wrap; None for others."""
    for _ in range(_MOST_WRAPPERS):
        if isinstance(session, RedisStateSession):
            return session
        session = getattr(session, "underlying_session", None)
    return None


def _refused_later(lost: LeaseLost) -> None:
    """Leave it to the next write, which the server refuses."""
    del lost


def _from_a_message(
    found: list[tuple[bytes, TResponseInputItem]],
) -> list[tuple[bytes, TResponseInputItem]]:
    """Leave out items at the front that no model takes without those before them."""
    begins = (number for number, (_, item) in enumerate(found) if _may_begin(item))
    return found[next(begins, 0) :]


def _may_begin(item: Any) -> bool:
    return item.get("role") in _BEGIN or item.get("type") == "compaction"
