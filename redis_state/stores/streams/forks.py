"""Forks: streams that begin as copies of others.

A fork copies its rows, so that neither lifetime nor retention of its origin concerns it, and each
is in its own slot. Until all rows are there nobody sees it; calls that make the same fork at the
same time copy the same rows, and one of them opens it. Its origin learns of it last. A crash
before leaves a whole fork, and an origin whose path is free once it is deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from redis_state.errors import CursorGap, InvalidField, StreamRefused, StreamUnknown
from redis_state.models.streams import (
    StreamOrigin,
    check_path,
    media_type,
    offset_of,
    place_of,
)
from redis_state.scripts import ReplyCode, raw
from redis_state.stores.base import Base
from redis_state.stores.streams.rows import read_row, split_messages, write_row
from redis_state.stores.streams.views import StoredStream, read_stored

Find: TypeAlias = Callable[[str], Awaitable[StoredStream | None]]

_MOST_FORKS = 1_000
# Forks of forks: whether an origin has living ones is found by following them.
_DEEPEST = 100
_PAGE_ROWS, _PAGE_BYTES = 500, 1 << 20


@dataclass(frozen=True, slots=True)
class _Resolved:
    """An origin with the place at which the fork leaves it."""

    path: str
    stream_id: str
    place: str
    part: int
    first: str
    depth: int

    def document(self) -> dict[str, Any]:
        """Return what is stored of it."""
        return {
            "path": self.path,
            "id": self.stream_id,
            "place": self.place,
            "part": self.part,
            "depth": self.depth,
        }


class Forks:
    """Make forks, and know of them when their origin is deleted."""

    def __init__(self, base: Base, find: Find) -> None:
        self._base = base
        self._find = find
        self.hold_ms: int = 60_000

    async def source(self, origin: StreamOrigin, content_type: str | None) -> StoredStream:
        """Return the stream to fork. Errors: StreamUnknown, StreamRefused, InvalidField."""
        check_path(origin.path)
        stored = await self._find(origin.path)
        if stored is None:
            raise StreamUnknown(origin.path)
        if stored.state == "deleted":
            raise StreamRefused(origin.path, "deleted")
        if content_type and media_type(content_type) != media_type(stored.view.content_type):
            raise StreamRefused(origin.path, "type")
        return stored

    def resolved(self, origin: StreamOrigin | None, source: StoredStream) -> _Resolved | None:
        """Return where a fork leaves its origin. Errors: InvalidField."""
        if origin is None:
            return None
        depth = 1 + (source.origin or {"depth": 0})["depth"]
        if depth > _DEEPEST:
            raise InvalidField("origin", f"is the {_DEEPEST}th fork of a fork")
        place = source.last if origin.offset is None else place_of(origin.offset)
        place = {"": source.first, "now": source.last}.get(place, place)
        if offset_of(place) > source.view.offset:
            raise InvalidField("fork_offset", "is beyond the end")
        if origin.part and place == source.last:
            raise InvalidField("fork_part", "is beyond the end")
        # Of what retention has removed, the fork has nothing either.
        first = source.first if offset_of(source.first) <= offset_of(place) else place
        return _Resolved(origin.path, source.view.stream_id, place, origin.part, first, depth)

    def alike(self, stored: StoredStream, origin: StreamOrigin | None) -> bool:
        """Return whether a stream is the fork that is wanted; no offset is any."""
        known = stored.origin
        if known is None or origin is None:
            return known is None and origin is None
        same_place = origin.offset is None or place_of(origin.offset) == known["place"]
        return known["path"] == origin.path and known["part"] == origin.part and same_place

    async def copy(self, fork: StoredStream, row: bytes) -> tuple[StoredStream, bool]:
        """Copy the rows of a fork and open it; return it, and whether this call did.

        Errors: StreamUnknown if the origin, or the fork itself, was deleted meanwhile; CursorGap
        if it was trimmed.
        """
        origin = fork.origin or {}
        end, place = str(origin["place"]), fork.last
        while offset_of(place) < offset_of(end):
            rows = [
                found
                for found in await self._rows(origin, place)
                if offset_of(found[0]) <= offset_of(end)
            ]
            if not rows:
                raise CursorGap(
                    offset_of(end), reason="ahead", missed=None, resume_after=offset_of(place)
                )
            place = rows[-1][0].decode()
            fork, is_open = await self._put(fork, [part for found in rows for part in found])
            if is_open:
                break
        else:
            part = await self._part(origin, end)
            fork, is_open = await self._put(fork, [], opening=True, part=part, row=row)
        await self._register(origin, fork)
        return fork, not is_open

    async def has_living(self, stored: StoredStream) -> bool:
        """Return whether a fork of a stream is kept."""
        for line in stored.forks.split(b"\n"):
            fork_id, _, path = line.decode("utf-8", "surrogatepass").partition(" ")
            if path:
                found = await self._find(path)
                if found is not None and found.view.stream_id == fork_id:
                    return True
        return False

    async def drop(self, stored: StoredStream, *, keep: bool) -> bool:
        """Delete a stream, unless it changed meanwhile; with ``keep``, leave its path taken."""
        reply = await self._base.scripts.delete_stream(
            self._base.keys.stream(stored.view.path),
            stream_id=stored.view.stream_id,
            forks=stored.forks,
            keep=keep,
        )
        return reply.word is ReplyCode.OK

    async def _put(
        self,
        fork: StoredStream,
        rows: list[bytes],
        *,
        opening: bool = False,
        part: bytes = b"",
        row: bytes = b"",
    ) -> tuple[StoredStream, bool]:
        path = fork.view.path
        reply = await self._base.scripts.copy_stream(
            self._base.keys.stream(path),
            stream_id=fork.view.stream_id,
            hold_ms=self.hold_ms,
            opening=opening,
            part=part,
            data=row,
            copied=rows,
        )
        if reply.word is ReplyCode.MISSING:
            raise StreamUnknown(path)
        return read_stored(path, reply.facts[0]), reply.word is ReplyCode.COUNTED

    async def _part(self, origin: Any, place: str) -> bytes:
        """Return the beginning of the row behind a place. Errors: InvalidField."""
        count: int = origin["part"]
        if not count:
            return b""
        found = await self._rows(origin, place, most=1)
        source = await self._find(origin["path"])
        if not found or source is None:
            raise InvalidField("fork_part", "is beyond the end")
        data = read_row(self._base.payloads, origin["path"], found[0][1])
        if not source.view.is_json:
            taken, size = data[:count], len(data)
        else:
            messages = split_messages(b"[" + data + b"]")
            taken, size = b",".join(messages[:count]), len(messages)
        if count > size:
            raise InvalidField("fork_part", "is beyond the end of the row")
        return write_row(self._base.payloads, taken)

    async def _rows(
        self, origin: Any, place: str, *, most: int = _PAGE_ROWS
    ) -> list[tuple[bytes, bytes]]:
        path = origin["path"]
        reply = await self._base.scripts.read_stream(
            self._base.keys.stream(path),
            after=place,
            most_rows=most,
            most_bytes=_PAGE_BYTES,
            renew=False,
        )
        if reply.word is ReplyCode.GAP:
            raise CursorGap(
                offset_of(place),
                reason=reply.text(0),
                missed=None,
                resume_after=offset_of(reply.text(1)),
            )
        if reply.word is not ReplyCode.OK:
            raise StreamUnknown(path)
        source = read_stored(path, reply.facts[0])
        if source.view.stream_id != origin["id"]:
            raise StreamUnknown(path)
        return list(source.rows_behind(place, reply.facts[1]).rows)

    async def _register(self, origin: Any, fork: StoredStream) -> None:
        keys = self._base.keys.stream(origin["path"])
        await self._base.scripts.add_fork(
            keys.info,
            stream_id=origin["id"],
            fork=raw(f"{fork.view.stream_id} {fork.view.path}"),
            most=_MOST_FORKS,
        )
