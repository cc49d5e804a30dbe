"""The record: a versioned set of fields that is saved whole or not at all.

A save may ask for a version and for a lease's epoch. It knows the id of its call, so that one
repeated after a lost reply recognises its own write instead of conflicting with it. That id is part
of the version too: a number alone is given again when the server's history goes back. A save is
known among the last 16 of its record: repeated, it leaves what others saved since.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state.errors import CorruptState, LeaseLost, VersionConflict
from redis_state.models.version import Version
from redis_state.scripts import Fence, ReplyCode, Scripts, topic_text

_REMEMBERED = 500
_PAGE = 100


@dataclass(slots=True)
class Stored:
    """A record as it was read: its version, when it was first saved, and its fields."""

    version: Version
    order: int
    fields: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is listed: an index of its slot, and its name there."""

    index: str
    member: str


class Records:
    """Save, load and list records."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def save(
        self,
        key: str,
        fields: Mapping[str, bytes],
        *,
        ttl_ms: int,
        expected: int | None = None,
        place: Place | None = None,
        fence: Fence | None = None,
    ) -> Version:
        """Save fields and return the new version. Fields not given keep their value.

        Atomic. ``expected`` is the version that the record must have, 0 for absent. A `Version` is
        compared with its write, a plain int as the number alone. Errors: VersionConflict,
        LeaseLost; nothing is written then.
        """
        write = new_write_id()
        index, member = (place.index, place.member) if place else (None, None)
        if expected is None:
            reply = await self._scripts.put_record(
                key,
                fields,
                write=write,
                ttl_ms=ttl_ms,
                index=index,
                member=member,
                fence=fence,
            )
        else:
            reply = await self._scripts.save_record(
                key,
                fields,
                write=write,
                ttl_ms=ttl_ms,
                expected=expected,
                index=index,
                member=member,
                fence=fence,
            )
        if reply.word is ReplyCode.STALE:
            raise VersionConflict(key, expected=expected or 0, actual=reply.version)
        if reply.word is ReplyCode.LOST:
            raise LeaseLost(key, epoch=fence.epoch if fence else 0, current=reply.facts[0])
        return Version(reply.facts[0], write)

    async def amend(self, key: str, fields: Mapping[str, bytes], *, ttl_ms: int) -> bool:
        """Save fields of a record that is there, and return whether it was. Atomic."""
        reply = await self._scripts.put_record(
            key, fields, write=new_write_id(), ttl_ms=ttl_ms, only_if_there=True
        )
        return reply.word is ReplyCode.OK

    async def load(self, key: str) -> Stored | None:
        """Return the record, or None if there is none. Errors: CorruptState."""
        commands = self._scripts.transport.commands
        flat = await self._scripts.read(commands.hgetall(key), key, command="HGETALL")
        try:
            return stored(flat)
        except ValueError:
            raise CorruptState(key, "not a record: its version or its order is no number") from None

    async def members(self, index: str, *, newest: int | None = None) -> list[str]:
        """List the names in an index, what expires last first, ``newest`` of them at most.

        Errors: CorruptState.
        """
        count = -1 if newest is None else newest
        commands = self._scripts.transport.commands
        reply = commands.zrevrange_above(index, 0, count=count)
        found: list[bytes] = await self._scripts.read(reply, index, command="ZREVRANGEBYSCORE")
        return [topic_text(member) or "" for member in found]

    async def pages(self, index: str, *, size: int = _PAGE) -> AsyncIterator[list[str]]:
        """Yield the names in an index in pages, what expires first first, each in constant time.

        A name that is saved meanwhile moves to the end: it may come twice, and none is left out.
        """
        lowest: bytes = b"-inf"
        at_lowest: set[bytes] = set()
        while True:
            # Those of the last score come again, for a further one may have the same.
            count = size + len(at_lowest)
            found: list[bytes] = await self._scripts.transport.commands.zrange_from(
                index, lowest, count=count
            )
            scored = list(zip(found[::2], found[1::2], strict=True))
            page = [member for member, _ in scored if member not in at_lowest]
            if page:
                yield [topic_text(member) or "" for member in page]
            if len(scored) < count:
                return
            if scored[-1][1] != lowest:
                at_lowest.clear()
            lowest = scored[-1][1]
            at_lowest.update(member for member, score in scored if score == lowest)

    async def delete(self, key: str, *, place: Place | None = None) -> bool:
        """Delete a record and its place in an index; return whether there was one."""
        reply = await self._delete(key, place, only_if_gone=False)
        return reply == 1

    async def forget(self, key: str, *, place: Place) -> None:
        """Take a record that has expired out of its index, unless it was saved again since."""
        await self._delete(key, place, only_if_gone=True)

    async def _delete(self, key: str, place: Place | None, *, only_if_gone: bool) -> int:
        reply = await self._scripts.delete_record(
            key,
            index=place.index if place else None,
            member=place.member if place else None,
            only_if_gone=only_if_gone,
        )
        return int(reply.facts[0])


def stored(flat: list[Any]) -> Stored | None:
    """Read a hash's reply as a record; None for an empty one."""
    return record_of(fields_of(flat)) if flat else None


def fields_of(flat: list[Any]) -> dict[str, bytes]:
    """Read a hash's reply as fields. Raises nothing, whatever they are."""
    return dict(zip(map(_name, flat[::2]), flat[1::2], strict=True))


def picked(names: Sequence[str], values: Sequence[Any]) -> Stored | None:
    """Read the reply for some fields as a record without others; None if there are none."""
    fields = dict(zip(names, values, strict=True))
    # Not `None in values`: each would be compared.
    if not all(values):
        fields = {name: value for name, value in fields.items() if value is not None}
    return record_of(fields) if fields else None


def record_of(fields: Mapping[str, bytes]) -> Stored:
    """Read fields as a record. Errors: ValueError."""
    version = read_version(fields.get("version"), fields.get("write"))
    return Stored(version, int(fields.get("order", 0)), fields)


def read_version(number: bytes | None, write: bytes | None) -> Version:
    """Read a version as it is stored; 0 for a document that is absent."""
    return Version(int(number or 0), (write or b"").decode("utf-8", "surrogatepass"))


class _FieldNames(dict[bytes, str]):
    """The names of fields as text. They are few; should they be many, they are forgotten."""

    def __missing__(self, raw: bytes) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
        try:
            name = raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            # None of ours.
            name = raw.decode("utf-8", "backslashreplace")
        self[raw] = name
        return name


_name = _FieldNames().__getitem__


def new_write_id() -> str:
    """Return a new write id: 72 random bits, safe in URLs. A repeated call is recognised by it."""
    return os.urandom(9).hex()
