"""A stream as its script returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis_state.models.streams import StreamPage, StreamView, offset_of
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.stores.streams.rows import read_row

# The order of lua/lib/stream/stream_view.
_ID, _STATE, _TYPE, _LIFE, _EXPIRES, _CLOSED, _CLOSER = range(7)
_FIRST, _LAST, _BYTES, _SEQ, _ORIGIN, _FORKS, _ABOUT = range(7, 14)


@dataclass(frozen=True, slots=True)
class RowsBehind:
    """Rows as they are stored, each with its place, and the place before them."""

    start: str
    rows: Sequence[tuple[bytes, bytes]] = field(repr=False)

    @property
    def end(self) -> str:
        """The place of the last row, or where they would begin."""
        return self.rows[-1][0].decode() if self.rows else self.start


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream, its state, its places, what it is a fork of, and its forks."""

    view: StreamView
    state: str
    first: str
    last: str
    origin: Mapping[str, Any] | None
    forks: bytes = field(repr=False)

    def rows_behind(self, place: str, found: Sequence[Any]) -> RowsBehind:
        """Return what a script has read behind a place."""
        start = self.first if place == "" else self.last if place == "now" else place
        return RowsBehind(start, [(entry[0], entry[1][1]) for entry in found])

    def page(self, payloads: Payloads, found: RowsBehind) -> StreamPage:
        """Return a page of rows. Errors: PayloadUnreadable; CorruptState."""
        path = self.view.path
        rows = tuple(read_row(payloads, path, data) for _, data in found.rows)
        offsets = tuple(offset_of(place) for place, _ in found.rows)
        return StreamPage(self.view, rows, offset_of(found.start), offset_of(found.end), offsets)


def read_stored(path: str, found: Sequence[bytes]) -> StoredStream:
    """Read what a script returns of a stream."""
    about = codec.decode(found[_ABOUT])
    view = StreamView(
        path=path,
        stream_id=found[_ID].decode(),
        content_type=about["type"],
        offset=offset_of(found[_LAST]),
        first=offset_of(found[_FIRST]),
        closed=found[_CLOSED] == b"1",
        size_bytes=int(found[_BYTES]),
        ttl_s=about["ttl"],
        expires_at=about["expires"],
    )
    origin = codec.decode(found[_ORIGIN]) if found[_ORIGIN] else None
    return StoredStream(
        view,
        found[_STATE].decode(),
        found[_FIRST].decode(),
        found[_LAST].decode(),
        origin,
        found[_FORKS],
    )
