r"""Payloads as they are stored: sealed by a codec, bounded in size, large ones elsewhere.

What is sealed stands in the stored JSON as a text behind a carriage return:

    [1,null,"RESULT",\r"sealed:f:gAAAAAB...",null,null,1795398718523000]

Our encoder writes no carriage return, in no document: inside of texts it is escaped. So clear JSON
never looks sealed, and what was written before there were keys is read as it is. The whole is JSON
still: the scripts join sealed parts as they join clear ones, and know of neither. The letter says
how it was sealed: by Fernet keys, by a codec of the application's own, or that it is elsewhere,
which is what stands behind it then: see `redis_state.serialization.claim_store`.

A process that cannot read a part gets a `Sealed` in its place, and writes that back unchanged. So
it can cancel, retry, fork and decide tasks whose payloads it cannot read.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, cast

from redis_state.errors import PayloadTooLarge, PayloadUnreadable
from redis_state.serialization import codec
from redis_state.serialization.claim_store import ClaimStore, Elsewhere
from redis_state.serialization.encryption import Cipher
from redis_state.serialization.rows import as_object, pack, unpack
from redis_state.serialization.sealed import (
    NO_STORE,
    PART,
    SIGN,
    UNREADABLE,
    Sealed,
    name_in,
    restored,
)

log: logging.Logger = logging.getLogger(__name__)

DEFAULT_MAX_BYTES: Final = 32 * 1024 * 1024

_NULL: Final = b"null"
Encode: TypeAlias = Callable[[Any], bytes]


class PayloadCodec(Protocol):
    """What turns payloads into what is stored, and back: encryption of an application's own.

    Both methods are called in the event loop, and from any number of processes. They must not wait:
    calls take effect in the order in which they are made. A codec over a key service fetches its
    data keys beforehand.
    """

    def encode(self, data: bytes) -> bytes:
        """Return what is stored of a payload, which is JSON."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Return the payload. Any exception means that it cannot be read in this process."""
        ...


class Parts:
    """The sealed parts of one document: put each in its place, then mark them in the JSON."""

    __slots__ = ("_payloads", "_written")

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._written: list[bytes] = []

    def __call__(self, value: Any, *, field: str = "payload") -> Any:
        """Return what stands in the document for a value."""
        data = self._payloads.write(value, field=field)
        if not data.startswith(SIGN):
            return value
        self._written.append(data[1:])
        return data[2:-1].decode()

    def mark(self, document: bytes) -> bytes:
        """Return the document with its sealed parts marked."""
        for text in self._written:
            document = document.replace(text, SIGN + text)
        return document


class Payloads:
    """Write and read the payloads of one store."""

    def __init__(
        self,
        *,
        cipher: Cipher | None = None,
        own: PayloadCodec | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        claims: ClaimStore | None = None,
        claim_bytes: int | None = None,
        place: str = "",
    ) -> None:
        self._cipher = cipher
        self._own = own
        self._max_bytes = max_bytes
        self._claims = None if claims is None else Elsewhere(claims, place)
        self._claim_bytes = claim_bytes
        self.seals: bool = cipher is not None or own is not None
        # Whether something was met that cannot be read here: what comes next may be the like.
        self.met_unreadable: bool = False

    # Writing

    def write(self, value: Any, *, field: str = "payload") -> bytes:
        """Write a payload: sealed if there are keys, unless it is None. Errors: PayloadTooLarge."""
        if type(value) is Sealed:
            return value.data
        data = codec.encode(value)
        if len(data) > self._max_bytes:
            self.check_size(field, len(data))
        return self._seal(data) if self.seals and data != _NULL else data

    def seal(self, data: bytes) -> bytes:
        """Seal what is written already, if there are keys."""
        return self._seal(data) if self.seals and not data.startswith(SIGN) else data

    def document(
        self, document: Mapping[str, Any], *names: str, write: Encode = codec.encode
    ) -> bytes:
        """Write a document whose values of these names are payloads. Errors: PayloadTooLarge."""
        if not self._has_parts(document[name] for name in names):
            return self._bounded(names[0], write(document))
        parts = Parts(self)
        sealed = {name: parts(document[name], field=name) for name in names}
        return parts.mark(write({**document, **sealed}))

    def row(self, values: Sequence[Any], place: int, *, field: str) -> bytes:
        """Write a row of a log whose value at this place is a payload. Errors: PayloadTooLarge."""
        if not self.seals and type(values[place]) is not Sealed:
            return self._bounded(field, pack(values))
        parts, row = Parts(self), list(values)
        row[place] = parts(row[place], field=field)
        return parts.mark(pack(row))

    def list_of(self, values: Sequence[Any], place: int, *, field: str) -> bytes:
        """Write a list whose value at this place is a payload."""
        parts, written = Parts(self), list(values)
        written[place] = parts(written[place], field=field)
        return parts.mark(codec.encode(written))

    def lane(self, values: Sequence[Any]) -> bytes:
        """Write where a lane stands; its last value is made of what it did first."""
        if self.seals and any(values[-1]):
            return self.list_of(values, -1, field="lane")
        return codec.encode(values)

    def bounded(self, text: str | None) -> str | None:
        """Return a text, cut if it is too large for a payload."""
        if text is None or 6 * len(text) + 2 <= self._max_bytes:
            return text
        size = len(codec.encode(text))
        return text if size <= self._max_bytes else f"{text[: min(1000, self._max_bytes // 8)]}…"

    def parts(self) -> Parts:
        """Begin a document of sealed parts."""
        return Parts(self)

    def check(self, field: str, value: Any) -> None:
        """Refuse a payload that is too large. Errors: PayloadTooLarge."""
        if value is not None and type(value) is not Sealed:
            self.check_size(field, len(codec.encode(value)))

    def check_size(self, field: str, size: int) -> None:
        """Refuse a payload of so many bytes of JSON. Errors: PayloadTooLarge."""
        if size > self._max_bytes:
            raise PayloadTooLarge(field, size=size, limit=self._max_bytes)

    async def put(self, field: str, value: Any) -> Any:
        """Check a payload's size; return it, or what is written for it.

        A large one is put into the store of claims first. A crash afterwards leaves an object that
        nothing names. Errors: PayloadTooLarge; PayloadStoreUnavailable.
        """
        if value is None or type(value) is Sealed:
            return value
        data = codec.encode(value)
        written = await self.put_written(field, data)
        return value if written is data else Sealed(written)

    async def put_written(self, field: str, data: bytes) -> bytes:
        """Check and seal a payload that is written already, like `put`."""
        self.check_size(field, len(data))
        claims = self._claims_for(data)
        if claims is None:
            return self._sealed(data)
        return b'\r"sealed:o:%s"' % await claims.put(self._sealed(data))

    def put_at_once(self, field: str, data: bytes) -> bytes | None:
        """Do the same without waiting; None for what goes to the store of claims."""
        if len(data) > self._max_bytes:
            self.check_size(field, len(data))
        return self._sealed(data) if self._claims_for(data) is None else None

    # Reading

    def decode(self, data: bytes) -> Any:
        """Read what was written. Unreadable parts are `Sealed`. Errors: codec.DecodeError."""
        if SIGN not in data:
            return codec.decode(data)
        opened, left = self._open(data)
        return restored(codec.decode(opened), left) if left else codec.decode(opened)

    def as_object(self, data: bytes) -> dict[str, Any]:
        """Read a document. Errors: codec.DecodeError."""
        if SIGN not in data:
            return as_object(data)
        opened, left = self._open(data)
        found = as_object(opened)
        return cast("dict[str, Any]", restored(found, left)) if left else found

    def unpack(self, data: bytes, size: int, *, more: int = 0) -> list[Any]:
        """Read a row's values. Errors: codec.DecodeError."""
        if SIGN not in data:
            return unpack(data, size, more=more)
        opened, left = self._open(data)
        found = unpack(opened, size, more=more)
        return cast("list[Any]", restored(found, left)) if left else found

    def open(self, data: bytes, *, of: str, field: str) -> bytes:
        """Return what was sealed as a whole. Errors: PayloadUnreadable."""
        if SIGN not in data:
            return data
        opened, left = self._open(data)
        if left:
            raise PayloadUnreadable(of, field, UNREADABLE)
        return opened

    def need_all(self, data: bytes | None, *, of: str, field: str) -> None:
        """Check that all parts that stand in this document can be read by this process.

        Errors: PayloadUnreadable.
        """
        if data is None or SIGN not in data:
            return
        for part in self._open(data)[1].values():
            self.need(Sealed(part), of=of, field=field)

    def need(self, value: Any, *, of: str, field: str) -> Any:
        """Return a value that was read. Errors: PayloadUnreadable for one that could not be."""
        if type(value) is Sealed and not value.is_elsewhere:
            raise PayloadUnreadable(of, field, UNREADABLE)
        if type(value) is Sealed and self._claims is None:
            raise PayloadUnreadable(of, field, NO_STORE)
        return value

    def need_within(self, value: Any, *, of: str, field: str) -> Any:
        """Return a tree of values that was read. Errors: PayloadUnreadable, as of `need`."""
        if isinstance(value, dict):
            for part in cast("dict[str, Any]", value).values():
                self.need_within(part, of=of, field=field)
        elif codec.kind_of(value) is list:
            for part in value:
                self.need_within(part, of=of, field=field)
        return self.need(value, of=of, field=field)

    def loggable(self, error: BaseException) -> BaseException | None:
        """Return an error if its text may be logged: not that of a handler whose payloads are
        sealed.
        """
        return None if self.seals else error

    async def fetch(self, value: Any, *, of: str, field: str) -> Any:
        """Return a payload itself, from the store of claims if it is there.

        Errors: PayloadUnreadable; PayloadLost if the object is missing or damaged;
        PayloadStoreUnavailable.
        """
        if type(value) is not Sealed:
            return value
        if not value.is_elsewhere:
            raise PayloadUnreadable(of, field, UNREADABLE)
        if self._claims is None:
            raise PayloadUnreadable(of, field, NO_STORE)
        data = await self._claims.get(name_in(value), of=of, field=field)
        return self.need(self.decode(data), of=of, field=field)

    async def copied(self, value: Any, *, of: str, field: str) -> Any:
        """Return a payload in an object of its own, if it stands in the store of claims.

        The object is copied as it is: it need not be readable here. Without the store the value is
        returned. Errors: PayloadLost; PayloadStoreUnavailable.
        """
        if type(value) is not Sealed or not value.is_elsewhere or self._claims is None:
            return value
        data = await self._claims.get(name_in(value), of=of, field=field)
        return Sealed(b'\r"sealed:o:%s"' % await self._claims.put(data))

    def _claims_for(self, data: bytes) -> Elsewhere | None:
        most = self._claim_bytes
        return None if most is None or len(data) <= most else self._claims

    def _sealed(self, data: bytes) -> bytes:
        return self._seal(data) if self.seals and data != _NULL else data

    def _bounded(self, field: str, data: bytes) -> bytes:
        if len(data) > self._max_bytes:
            self.check_size(field, len(data))
        return data

    def _has_parts(self, values: Iterable[Any]) -> bool:
        return self.seals or any(type(value) is Sealed for value in values)

    def _seal(self, data: bytes) -> bytes:
        if self._own is not None:
            text = base64.urlsafe_b64encode(self._own.encode(data))
            return b'\r"sealed:c:%s"' % text
        if self._cipher is None:
            return data
        return b'\r"sealed:f:%s"' % self._cipher.encrypt(data)

    def _open(self, data: bytes) -> tuple[bytes, dict[str, bytes]]:
        """Open what can be; return also the texts that are left, and as what they are stored."""
        left: dict[str, bytes] = {}
        return PART.sub(partial(self._open_part, left), data), left

    def claims_in(self, data: bytes) -> set[bytes]:
        """Return the names of the objects in the store of claims that stored bytes name."""
        return {part[3] for part in PART.finditer(data) if part[2] == b"o"}

    async def delete_claim(self, name: bytes) -> bool:
        """Delete an object; return False without a store of claims, or for another namespace's.

        Errors: PayloadStoreUnavailable.
        """
        return self._claims is not None and await self._claims.delete(name)

    def _open_part(self, left: dict[str, bytes], part: re.Match[bytes]) -> bytes:
        opened: bytes | None = None
        if part[2] == b"f" and self._cipher is not None:
            opened = self._cipher.decrypt(part[3])
        elif part[2] == b"c" and self._own is not None:
            opened = self._decode_own(part[3])
        if opened is not None:
            return opened
        if part[2] != b"o" or self._claims is None:
            self.met_unreadable = True
        left[part[1].decode("ascii", "replace")] = part[0]
        return part[0]

    def _decode_own(self, text: bytes) -> bytes | None:
        if self._own is None:
            return None
        try:
            return self._own.decode(base64.urlsafe_b64decode(text))
        except Exception as error:  # noqa: BLE001 - a foreign codec: any failure
            log.warning("the payload codec cannot read a payload: %s", type(error).__name__)
            return None
