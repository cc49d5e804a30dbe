"""Durable streams: create, append, read, close, delete, and watch for what comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from redis_state import limits
from redis_state.errors import (
    CursorGap,
    InvalidField,
    StreamDeleted,
    StreamRefused,
    StreamUnknown,
)
from redis_state.models.streams import (
    BEGINNING,
    BYTES,
    JSON,
    ProducerBatch,
    StreamAppended,
    StreamLifetime,
    StreamOrigin,
    StreamPage,
    StreamView,
    check_path,
    check_type,
    media_type,
    offset_of,
    place_of,
    read_offset,
)
from redis_state.primitives.signal import listening
from redis_state.scripts import Reply, ReplyCode
from redis_state.scripts.stores.streams import StreamLimits
from redis_state.serialization import codec
from redis_state.stores.base import Base, ms
from redis_state.stores.streams.appends import check_batch, check_text, read_appended
from redis_state.stores.streams.created import CreatedStreams
from redis_state.stores.streams.forks import Forks
from redis_state.stores.streams.rows import split_messages, write_row
from redis_state.stores.streams.views import StoredStream, read_stored
from redis_state.transport.subscriber import Subscription

_PAGE_ROWS, _PAGE_BYTES = 1_000, 1 << 20


class StreamStore:
    """Streams of rows at paths, bounded in lifetime, rows and bytes.

    A row is what one append has. Its offset is its number and the server's time. So an offset of
    rows that a server has lost is not mistaken for one of the rows that came later.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        settings = base.settings
        self._life_ms = ms(settings.streams_ttl)
        self._longest = settings.longest_stream_ttl
        self._limits = StreamLimits(
            settings.max_rows_per_stream,
            settings.max_bytes_per_stream,
            settings.max_producers_per_stream,
        )
        self._forks = Forks(base, self.find)

    async def create(
        self,
        path: str,
        *,
        content_type: str | None = None,
        data: bytes = b"",
        lifetime: StreamLifetime | None = None,
        closed: bool = False,
        origin: StreamOrigin | None = None,
        creator: str | None = None,
    ) -> tuple[StreamView, bool]:
        """Create a stream, or return the one that was created alike; and whether it is new.

        ``data`` is its first row; of JSON, its messages may be none. A fork begins with what its
        origin has, which is copied: a crash leaves no half of it. Without a content type it has
        its origin's, else bytes. An erasure of the user ``creator`` erases it. Errors:
        StreamRefused if there is another one at the path; StreamUnknown, StreamRefused, CursorGap,
        InvalidField for an origin that cannot be forked.
        """
        check_path(path)
        lifetime = lifetime or StreamLifetime()
        source: StoredStream | None = None
        if origin is not None:
            known = await self._fork_there(path, content_type, lifetime, closed=closed, of=origin)
            if known is not None:
                return known.view, False
            source = await self._forks.source(origin, content_type)
            content_type = content_type or source.view.content_type
            if lifetime == StreamLifetime():
                lifetime = _inherited(source.view)
        content_type = check_type(content_type or BYTES)
        about = {
            "type": content_type,
            "ttl": lifetime.ttl_s,
            "expires": _moment(lifetime.expires_at),
        }
        life, expires = self._bounds(lifetime)
        resolved = None if source is None else self._forks.resolved(origin, source)
        reply = await self._base.scripts.create_stream(
            self._base.keys.stream(path),
            stream_id=uuid4().hex,
            content_type=media_type(content_type),
            life=life,
            expires=expires,
            closed=closed,
            about=codec.encode(about),
            creator=b"" if creator is None else codec.encode([creator, path]),
            origin=b"" if resolved is None else codec.encode(resolved.document()),
            first="0-0" if resolved is None else resolved.first,
            hold_ms=0 if resolved is None else self._forks.hold_ms,
            data=self._row(content_type, data, may_be_empty=True) if resolved is None else b"",
        )
        stored = read_stored(path, reply.facts[0])
        is_new = reply.word is ReplyCode.OK
        if stored.state == "deleted" and await self.find(path) is None:
            # Its forks are gone by now, and so is the mark that it had left.
            return await self.create(
                path,
                content_type=content_type,
                data=data,
                lifetime=lifetime,
                closed=closed,
                origin=origin,
                creator=creator,
            )
        if not is_new:
            self._compare(stored, content_type, about, closed=closed, origin=origin)
        if resolved is not None and stored.state == "copying":
            row = self._row(content_type, data, may_be_empty=True)
            stored, is_new = await self._forks.copy(stored, row)
        return stored.view, is_new

    async def append(
        self,
        path: str,
        data: bytes = b"",
        *,
        content_type: str | None = None,
        batch: ProducerBatch | None = None,
        sequence: str | None = None,
        close: bool = False,
    ) -> StreamAppended:
        """Append a row, or close the stream, or both in one step.

        A producer's batch is appended once: batches are counted in the step that appends. Without
        a content type the row has the stream's. Errors: StreamUnknown; StreamRefused if it is
        closed, of another type, or the sequence not above the last; ProducerRefused.
        """
        check_path(path)
        if not data and not close:
            raise InvalidField("data", "must not be empty")
        if content_type is None and data:
            content_type = (await self.look(path)).content_type
        batch, seq = check_batch(batch), check_text("sequence", sequence)
        row = self._row(content_type or BYTES, data)
        reply = await self._base.scripts.append_stream(
            self._base.keys.stream(path),
            self._limits,
            content_type=media_type(content_type or ""),
            seq=seq,
            producer="" if batch is None else batch.producer,
            epoch=0 if batch is None else batch.epoch,
            number=0 if batch is None else batch.number,
            closing=close,
            data=row,
        )
        return read_appended(path, reply, batch)

    async def read(
        self,
        path: str,
        *,
        offset: str = BEGINNING,
        most_rows: int = _PAGE_ROWS,
        most_bytes: int = _PAGE_BYTES,
    ) -> StreamPage:
        """Read rows behind an offset: ``-1`` for the oldest kept, ``now`` for none.

        The lifetime begins again. Errors: StreamUnknown; CursorGap if rows behind the offset are
        gone; InvalidField.
        """
        limits.count("most_rows", most_rows, least=0)
        limits.count("most_bytes", most_bytes)
        given = read_offset(offset)
        stored, found = await self._read(path, given.whole, most_rows, most_bytes, renew=True)
        page = stored.page(self._base.payloads, found)
        rest = page.behind(given) if most_rows else page
        if rest is None:
            # The server has lost the row, of which the caller has a part.
            raise CursorGap(offset, reason="rewound", missed=None, resume_after=given.whole)
        return rest

    async def look(self, path: str) -> StreamView:
        """Return what is known of a stream, without renewing it. Errors: StreamUnknown."""
        stored, _ = await self._read(path, BEGINNING, 0, 1, renew=False)
        return stored.view

    async def delete(self, path: str, *, stream_id: str | None = None) -> None:
        """Delete a stream, once per call. Forks of it stay, and keep its path taken.

        With ``stream_id`` only that of the view which has it. Errors: StreamUnknown.
        """
        while True:
            stored = await self.find(path)
            if stored is None or stream_id not in (None, stored.view.stream_id):
                raise StreamUnknown(path)
            if stored.state == "deleted":
                raise StreamDeleted(path)
            keep = await self._forks.has_living(stored)
            if await self._forks.drop(stored, keep=keep):
                return

    @asynccontextmanager
    async def listening(self, path: str) -> AsyncGenerator[Subscription]:
        """Hear of changes of a stream for the length of the block.

        Each message says that something is new, None that something may be: read then. The first
        is None.
        """
        channel = self._base.keys.stream(check_path(path)).channel
        async with listening(self._base.scripts.transport, channel) as subscription:
            yield subscription

    def created_by(self, creator: str, *, most: int) -> CreatedStreams:
        """Return the count of the streams that a creator has made, for up to so many."""
        return CreatedStreams(self._base, creator, most=most)

    async def find(self, path: str) -> StoredStream | None:
        """Return a stream, also one whose path is only taken by its forks; else None."""
        reply = await self._ask(path, "", 0, 1, renew=False)
        if reply.word is ReplyCode.MISSING:
            return None
        stored = read_stored(path, reply.facts[0])
        if stored.state == "deleted" and not await self._forks.has_living(stored):
            await self._forks.drop(stored, keep=False)
            return None
        return stored

    async def _read(
        self, path: str, offset: str, most_rows: int, most_bytes: int, *, renew: bool
    ) -> tuple[StoredStream, Any]:
        place = place_of(offset)
        reply = await self._ask(path, place, most_rows, most_bytes, renew=renew)
        if reply.word is ReplyCode.MISSING:
            raise StreamUnknown(path)
        if reply.word is ReplyCode.DENIED:
            raise StreamUnknown(path) if await self.find(path) is None else StreamDeleted(path)
        if reply.word is ReplyCode.GAP:
            first = reply.text(1)
            missed = int(first.partition("-")[0]) - int(place.partition("-")[0])
            reason = reply.text(0)
            raise CursorGap(
                offset,
                reason=reason,
                missed=missed if reason == "trimmed" else None,
                resume_after=offset_of(first),
            )
        stored = read_stored(path, reply.facts[0])
        return stored, stored.rows_behind(place, reply.facts[1])

    async def _ask(
        self, path: str, place: str, most_rows: int, most_bytes: int, *, renew: bool
    ) -> Reply:
        keys = self._base.keys.stream(check_path(path))
        return await self._base.scripts.read_stream(
            keys, after=place, most_rows=most_rows, most_bytes=most_bytes, renew=renew
        )

    def _row(self, content_type: str, data: bytes, *, may_be_empty: bool = False) -> bytes:
        if data and media_type(content_type) == JSON:
            data = b",".join(split_messages(data, may_be_empty=may_be_empty))
        return write_row(self._base.payloads, data)

    async def _fork_there(
        self,
        path: str,
        content_type: str | None,
        lifetime: StreamLifetime,
        *,
        closed: bool,
        of: StreamOrigin,
    ) -> StoredStream | None:
        """Return the fork if it is there, whose origin may be gone. Errors: StreamRefused."""
        stored = await self.find(path)
        if stored is None or stored.origin is None or stored.state == "deleted":
            return None
        view = stored.view
        about = {"ttl": lifetime.ttl_s, "expires": _moment(lifetime.expires_at)}
        if lifetime == StreamLifetime():
            about = {"ttl": view.ttl_s, "expires": view.expires_at}
        self._compare(stored, content_type or view.content_type, about, closed=closed, origin=of)
        return stored

    def _compare(
        self,
        stored: StoredStream,
        content_type: str,
        about: dict[str, Any],
        *,
        closed: bool,
        origin: StreamOrigin | None,
    ) -> None:
        """Compare what is there with what is wanted. Errors: StreamRefused."""
        path, view = stored.view.path, stored.view
        if stored.state == "deleted":
            raise StreamRefused(path, "deleted")
        alike = (
            media_type(view.content_type) == media_type(content_type)
            and view.closed == closed
            and view.ttl_s == about["ttl"]
            and view.expires_at == about["expires"]
            and self._forks.alike(stored, origin)
        )
        if not alike:
            raise StreamRefused(path, "exists", offset=view.offset)

    def _bounds(self, lifetime: StreamLifetime) -> tuple[int | None, int | None]:
        """Return the lifetime after a use, or the moment of its end, in ms."""
        ttl_s, expires_at = lifetime.ttl_s, lifetime.expires_at
        if ttl_s is not None and expires_at is not None:
            raise InvalidField("lifetime", "has either ttl_s or expires_at")
        if ttl_s is not None:
            limits.count("ttl_s", ttl_s, least=0)
            if ttl_s > self._longest.total_seconds():
                raise InvalidField("ttl_s", f"must be at most {self._longest.total_seconds():.0f}")
            return max(1, ttl_s * 1000), None
        if expires_at is None:
            return self._life_ms, None
        if expires_at.tzinfo is None:
            raise InvalidField("expires_at", "needs a time zone")
        if expires_at > datetime.now(UTC) + self._longest:
            raise InvalidField("expires_at", "is too far ahead")
        return None, max(1, int(expires_at.timestamp() * 1000))


def _inherited(source: StreamView) -> StreamLifetime:
    if source.expires_at is None:
        return StreamLifetime(ttl_s=source.ttl_s)
    return StreamLifetime(expires_at=datetime.fromisoformat(source.expires_at))


def _moment(given: datetime | None) -> str | None:
    if given is None:
        return None
    rounded = given.astimezone(UTC) if given.tzinfo is not None else given
    return (rounded - timedelta(microseconds=rounded.microsecond % 1000)).isoformat(
        timespec="milliseconds"
    )
