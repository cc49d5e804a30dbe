"""What every store shares: where things are, how long they live, how they are read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from redis_state.errors import BackendError, CommandRefused
from redis_state.futures import unawaited
from redis_state.primitives.record import Records, Stored, picked, stored
from redis_state.primitives.signal import Row
from redis_state.scripts import Scripts
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.settings import Settings
from redis_state.transport.keys import Keys

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

# What HGETALL will answer.
Flat: TypeAlias = Awaitable[list[bytes]]

# For how long something is held for the archive, from the last look at it.
ARCHIVE_HOLD_MS = 400 * 86_400_000
_UNREADABLE_MOST = 100
_UNREADABLE_TTL_MS = 7 * 24 * 3600 * 1000
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something stored that could not be read: where it stands, why, and its bytes as text."""

    place: str
    reason: str
    row: str = field(repr=False)


@dataclass(slots=True)
class Counters:
    """What happened since the store was made, in this process."""

    unreadable_rows: int = 0
    stale_task_saves: int = 0


@dataclass(frozen=True, slots=True)
class Base:
    """The parts that a store is made of."""

    settings: Settings
    keys: Keys
    scripts: Scripts
    records: Records
    payloads: Payloads = field(default_factory=Payloads)
    counters: Counters = field(default_factory=Counters)
    background: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    noticed: set[tuple[str, str, int]] = field(default_factory=set[tuple[str, str, int]])

    def read_rows(
        self, scope: str, kind: str, rows: Iterable[Row], read: Callable[[Row], T]
    ) -> list[T]:
        """Read rows, setting aside those that cannot be read. See `read_row`."""
        found = (self.read_row(scope, kind, row, read) for row in rows)
        return [value for value in found if value is not None]

    def read_row(self, scope: str, kind: str, row: Row, read: Callable[[Row], T]) -> T | None:
        """Read one row of a log, or count it, keep it aside with its reason, and return None."""
        try:
            return read(row)
        except Exception as error:  # noqa: BLE001 - as in attempt
            self.set_aside(scope, f"{kind} {row.cursor}", row.data, error)
            return None

    def record_first(self, index: str, member: str, *, ttl_ms: int) -> asyncio.Future[Any]:
        """Add a member to an index of another slot, before the save that the caller makes next.

        It is queued at once and awaited after that save. The calls keep their order, so a saved
        thing is never missing from its index.
        """
        recorded = self.scripts.begin_add_member(index, member=member, ttl_ms=ttl_ms)
        # The save may fail first; then nobody awaits this.
        unawaited(recorded)
        return recorded

    def fetch(self, key: str, names: tuple[str, ...] = ()) -> Flat:
        """Ask for a record, or for some of its fields, without waiting, for `read_record`."""
        return self.scripts.transport.commands.record(key, names)

    async def read_record(
        self,
        scope: str,
        place: str,
        flat: Flat,
        read: Callable[[Stored], T],
        names: Sequence[str] = (),
    ) -> T | None:
        """Read a record; None if there is none, or if it was quarantined.

        ``names`` are the requested fields, if not all were.
        """
        try:
            fields = await flat
        except CommandRefused as error:
            if "WRONGTYPE" not in str(error):
                raise
            self.set_aside(scope, place, b"", codec.DecodeError("not a hash"))
            return None
        try:
            record = picked(names, fields) if names else stored(fields)
            return None if record is None else read(record)
        except Exception as error:  # noqa: BLE001 - as in attempt; the document is looked for only now
            given = [name.encode() for name in names] or fields[::2]
            found = dict(zip(given, fields if names else fields[1::2], strict=False))
            self.set_aside(scope, place, found.get(b"document") or b"", error)
            return None

    async def read_ordered(
        self,
        kind: str,
        pending: Iterable[tuple[str, str, Flat]],
        read: Callable[[str, Stored], T],
        names: Sequence[str] = (),
    ) -> list[T]:
        """Read records in the order of their first save, without those that are set aside.

        ``pending`` gives of each record its scope, its name and its reply, which ``read`` gets
        under its name.
        """
        found: list[tuple[int, T]] = []
        for scope, name, flat in pending:

            def ordered(record: Stored, name: str = name) -> tuple[int, T]:
                return record.order, read(name, record)

            one = await self.read_record(scope, f"{kind} {name}", flat, ordered, names)
            if one is not None:
                found.append(one)
        found.sort(key=itemgetter(0))
        return [value for _, value in found]

    async def list_ordered(
        self,
        scope: str,
        kind: str,
        index: str,
        *,
        key_of: Callable[[str], str],
        read: Callable[[str, Stored], T],
        names: Sequence[str] = (),
    ) -> list[T]:
        """Read the records of an index in the order of their first save. See `read_ordered`."""
        members = await self.records.members(index)
        pending = [(scope, name, self.fetch(key_of(name), tuple(names))) for name in members]
        return await self.read_ordered(kind, pending, read, names)

    def attempt(self, scope: str, place: str, data: bytes, read: Callable[[], T]) -> T | None:
        """Read something, or set it aside and return None."""
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - damage, or a host's own class: any failure
            self.set_aside(scope, place, data, error)
            return None

    def set_aside(self, scope: str, place: str, data: bytes, error: Exception) -> None:
        """Count something unreadable, once, and keep a copy for 7 days, without waiting for it."""
        reason = codec.reason_of(error)
        noticed = (scope, place, hash(data))
        if noticed in self.noticed:
            return
        if len(self.noticed) >= _REMEMBERED:
            self.noticed.clear()
        self.noticed.add(noticed)
        self.counters.unreadable_rows += 1
        log.warning("%r of %r cannot be read: %s", place, scope, reason)
        note = codec.encode({"reason": reason, "row": data.decode("utf-8", "backslashreplace")})
        task = asyncio.ensure_future(self._keep_aside(scope, place, note))
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    def unsettled(self) -> list[asyncio.Task[None]]:
        """Return the writes of unreadable values that this loop has begun and not finished."""
        loop = asyncio.get_running_loop()
        return [task for task in list(self.background) if task.get_loop() is loop]

    async def settle(self) -> None:
        """Wait until everything that this loop has set aside is kept."""
        waiting = self.unsettled()
        if waiting:
            await asyncio.wait(waiting)

    async def unreadable(self, scope: str) -> list[Unreadable]:
        """List what was set aside of a session, a trace, a memory key or a token's digest."""
        await self.settle()
        flat = await self.fetch(self.keys.unreadable(scope))
        notes = [codec.decode(note) for note in flat[1::2]]
        return [
            Unreadable(place.decode("utf-8", "replace"), note["reason"], note["row"])
            for place, note in zip(flat[::2], notes, strict=True)
        ]

    async def drop_unreadable(self, scope: str) -> None:
        """Forget what was set aside."""
        await self.settle()
        await self.scripts.delete(self.keys.unreadable(scope))

    async def _keep_aside(self, scope: str, place: str, note: bytes) -> None:
        try:
            await self.scripts.set_aside(
                self.keys.unreadable(scope),
                place=place,
                note=note,
                most=_UNREADABLE_MOST,
                ttl_ms=_UNREADABLE_TTL_MS,
            )
        except BackendError as error:
            log.warning("something unreadable could not be kept aside: %s", error)


def ms(duration: timedelta) -> int:
    """Count a duration in milliseconds, at least one."""
    return max(1, int(duration.total_seconds() * 1000))
