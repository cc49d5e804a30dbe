"""Checkpoints, values and writes as bytes.

A row is a head in MessagePack, which scripts read, the document behind it, which they do not, and
the head's length. The head has what links checkpoints and values: parent, run, names of values. The
document has everything else, and is sealed by the store's codec as values and writes are. Sealed
bytes begin with a carriage return, which no MessagePack array does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import PendingWrite, writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from redis_state.errors import CorruptState, InvalidField
from redis_state.integrations.langgraph.threads.stored import tails
from redis_state.integrations.langgraph.threads.stored.tails import StoredValue
from redis_state.serialization import codec
from redis_state.serialization.payloads import Payloads
from redis_state.transport.key_text import escape

_SEALED = b"\r"
_LENGTH = 4


class Head(NamedTuple):
    """What a checkpoint is linked to. ``namespace`` only if its place does not have it whole."""

    parent: str | None
    run: str
    names: list[str]
    namespace: str | None = None


class FoundCheckpoint(NamedTuple):
    """A checkpoint as it was read.

    It has the values by their names that were found with it or before it, and lines and writes in
    turn.
    """

    values: dict[bytes, bytes]
    place: bytes
    row: bytes
    writes: list[bytes]

    def __repr__(self) -> str:
        # What is not sealed is nobody's who reads a log.
        return f"<FoundCheckpoint at {self.place!r}>"


@dataclass(frozen=True, slots=True)
class Write:
    """A pending write, and what orders it."""

    task: str
    index: int
    path: str
    channel: str
    value: Any

    @property
    def order(self) -> tuple[str, str, int]:
        """Return where it stands among the writes of its checkpoint."""
        return writes_sort_key(self.path, self.task, self.index)

    @property
    def pending(self) -> PendingWrite:
        """Return it as LangGraph has it."""
        return self.task, self.channel, self.value


class Rows:
    """Write and read the parts of threads with one serializer and one codec."""

    def __init__(self, serde: SerializerProtocol, payloads: Payloads) -> None:
        self._serde = serde
        self.loads: Callable[[tuple[str, bytes]], Any] = serde.loads_typed
        self._payloads = payloads

    def value(self, value: Any, *, field: str) -> bytes:
        """Write a channel's value. Errors: InvalidField; PayloadTooLarge."""
        return self._packed(self._dumped(value, field), field)

    def stored_value(
        self, name: bytes, value: Any, *, field: str, base: StoredValue | None
    ) -> StoredValue:
        """Write a channel's value, as a tail if most of it stands in a base.

        Errors: InvalidField; PayloadTooLarge.
        """
        kind, data = self._dumped(value, field)
        if base is not None and kind == base.kind == "msgpack":
            parts = tails.parts_of(base, data, sealed=self._payloads.seals)
            if parts is not None:
                self._payloads.check_size(field, len(data))
                stored = tails.written(base, self._packed((kind, *parts), field))
                return StoredValue(name, stored, kind, data, base.chain + 1)
        return StoredValue(name, self._packed((kind, data), field), kind, data, 0)

    def read_value(self, data: bytes, *, of: str, field: str) -> Any:
        """Read a channel's value that stands alone. Errors: PayloadUnreadable; CorruptState."""
        kind, value = self._unpacked(data, of, field, size=2)
        return self.loads((kind, value))

    def found_value(
        self, name: bytes, values: Mapping[bytes, bytes], *, of: str, field: str
    ) -> StoredValue | None:
        """Read a channel's value among those that were found, for the serializer.

        Errors: PayloadUnreadable; CorruptState.
        """
        stored = data = values.get(name)
        if stored is None or data is None:
            return None
        chain: list[bytes] = []
        while data.startswith(tails.SIGN):
            base, sealed = tails.read(data)
            chain.append(sealed)
            data = values.get(base)
            if data is None or len(chain) > len(values):
                raise CorruptState(of, f"what {field} continues is not there")
        kind, value = self._unpacked(data, of, field, size=2)
        if chain:
            grown = bytearray(value)
            for sealed in reversed(chain):
                kind, head, start, count, rest = self._unpacked(sealed, of, field, size=5)
                tails.extend(grown, (head, start, count, rest), of=of)
            value = bytes(grown)
        return StoredValue(name, stored, kind, value, len(chain))

    def whole_value(self, name: bytes, values: Mapping[bytes, bytes], *, of: str) -> bytes:
        """Return a value as `value` wrote it, not sealed. Errors: as `found_value`."""
        found = self.found_value(name, values, of=of, field="values")
        if found is None:
            raise CorruptState(of, "a value is not there")
        return ormsgpack.packb([found.kind, found.data])

    def sealed(self, data: bytes) -> bytes:
        """Seal what `whole_value` returned, as what stands alone is stored."""
        return self._payloads.seal(data)

    def row(self, head: Head, document: Mapping[str, Any], metadata: Mapping[str, Any]) -> bytes:
        """Write a checkpoint without the values of its channels.

        Errors: InvalidField; PayloadTooLarge.
        """
        whole: list[Any] = [head.parent, head.run, head.names]
        if head.namespace is not None:
            whole.append(head.namespace)
        parts = (*self._dumped(document, "checkpoint"), *self._dumped(metadata, "metadata"))
        try:
            packed = ormsgpack.packb(whole)
        except TypeError:
            # The rest was checked.
            if _has_lone_surrogate(head.run):
                reason = "text without lone surrogates is needed"
                raise InvalidField("metadata.run_id", reason) from None
            reason = "a long namespace has no lone surrogates"
            raise InvalidField("configurable.checkpoint_ns", reason) from None
        length = len(packed).to_bytes(_LENGTH, "big")
        return packed + self._packed(parts, "checkpoint") + length

    def read_row(self, row: bytes, *, of: str) -> tuple[Head, Any, Any]:
        """Read a checkpoint: head, document, metadata. Errors: PayloadUnreadable; CorruptState."""
        head, size = read_head(row, of=of)
        kind, document, kind_of_metadata, metadata = self._unpacked(
            row[size:-_LENGTH], of, "checkpoint", size=4
        )
        return head, self.loads((kind, document)), self.loads((kind_of_metadata, metadata))

    def write(self, write: tuple[str, Any], *, task: str, path: str) -> bytes:
        """Write what a task wrote to a channel. Errors: InvalidField; PayloadTooLarge."""
        channel, value = write
        field = f"writes.{channel}"
        return self._packed((task, path, channel, *self._dumped(value, field)), field)

    def read_writes(self, flat: list[bytes], *, of: str) -> list[Write]:
        """Read pending writes, in the order in which LangGraph applies them."""
        if not flat:
            return []
        found: list[Write] = []
        for line, data in zip(flat[::2], flat[1::2], strict=True):
            index = int(line.split(b" ")[1])
            task, path, channel, kind, value = self._unpacked(data, of, "writes", size=5)
            loaded = self._serde.loads_typed((kind, value))
            found.append(Write(task, index, path, channel, loaded))
        return sorted(found, key=lambda write: write.order)

    def same_value(self, one: bytes, other: bytes, *, of: str) -> bool:
        """Compare two values that stand alone: as objects, if their bytes are not the same.

        A serializer that encrypts writes a value in another way each time. Another process writes
        the items of a set in another order.
        """
        if self.opened(one, of=of) == self.opened(other, of=of):
            return True
        with suppress(Exception):  # comparing objects of the user
            first, second = (self.read_value(data, of=of, field="values") for data in (one, other))
            return bool(first == second)
        return False

    def opened(self, data: bytes, *, of: str, field: str = "values") -> bytes:
        """Return a value as it was before it was sealed. Errors: PayloadUnreadable."""
        return self._payloads.open(data, of=of, field=field) if data.startswith(_SEALED) else data

    def digest(self, data: bytes) -> bytes:
        """Hash a value as it was before it was sealed."""
        return blake2b(self.opened(data, of="a checkpoint"), digest_size=16).digest()

    def opened_row(self, row: bytes, *, of: str) -> bytes:
        """Return a row as it was before its document was sealed. Errors: as `read_row`."""
        _, size = read_head(row, of=of)
        return row[:size] + self.opened(row[size:-_LENGTH], of=of, field="checkpoint")

    def opened_write(self, data: bytes, *, of: str) -> bytes:
        """Return what a write is, whatever its task's path. Errors: as `read_writes`."""
        task, _, *rest = self._unpacked(data, of, "writes", size=5)
        return ormsgpack.packb([task, *rest])

    def _dumped(self, value: Any, field: str) -> tuple[str, bytes]:
        """Serialize a value. What the serializer raises is the user's own. Errors: InvalidField."""
        dumped: Any = self._serde.dumps_typed(value)
        with suppress(TypeError, ValueError):
            kind, data = dumped
            # A copy: a serializer may have a buffer that it writes again.
            return kind, data if type(data) is bytes else memoryview(data).tobytes()
        raise InvalidField(field, "the serializer did not return a kind and bytes")

    def _packed(self, parts: Iterable[Any], field: str) -> bytes:
        try:
            data = ormsgpack.packb(list(parts))
        except ormsgpack.MsgpackEncodeError:
            reason = "the serializer's kind, or a name, is no text without lone surrogates"
            raise InvalidField(field, reason) from None
        self._payloads.check_size(field, len(data))
        return self._payloads.seal(data)

    def _unpacked(self, data: bytes, of: str, field: str, *, size: int) -> list[Any]:
        if data.startswith(_SEALED):
            data = self.opened(data, of=of, field=field)
        try:
            found: list[Any] = ormsgpack.unpackb(data)
        except ormsgpack.MsgpackDecodeError:
            raise CorruptState(of, f"{field} is damaged") from None
        if codec.kind_of(found) is not list or len(found) != size:
            raise CorruptState(of, f"{field} is of another shape")
        return found


def read_head(row: bytes, *, of: str) -> tuple[Head, int]:
    """Read a row's head, and how long it is. Errors: CorruptState."""
    size = int.from_bytes(row[-_LENGTH:], "big")
    try:
        return Head(*ormsgpack.unpackb(row[:size])), size
    except (ValueError, TypeError):
        raise CorruptState(of, "a checkpoint is damaged") from None


def line_channel(channel: str) -> str:
    """Write a channel as the line of a write has it: without spaces."""
    return escape("channel", channel)


def _has_lone_surrogate(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False
