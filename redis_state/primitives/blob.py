"""The blob: bytes in chunks, within limits that the server keeps.

A blob is uploaded beside its scope's books and made one of them in one step, which also evicts what
the limits ask for. No command carries more than one chunk, so none holds the server up, and neither
side ever has the whole in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from redis_state.errors import BackendUnavailable, InvalidField, LostRace, OutcomeUnknown
from redis_state.futures import unawaited
from redis_state.primitives.record import new_write_id
from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.commands import Commands
from redis_state.transport.key_groups import BlobKeys

CHUNK_BYTES = 256 * 1024
_UPLOAD_TTL_MS = 15 * 60 * 1000
_READ_AHEAD = 4
# Each round but the last means that another writer or reader made progress meanwhile.
_ROUNDS = 1000

Strategy = Literal["lru", "fifo", "none"]


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a scope keeps, and how long. ``ttl_ms`` 0 keeps a blob until it is deleted.

    Over a limit, ``lru`` evicts what was used longest ago and ``fifo`` what came first; ``none``
    neither evicts nor refuses, except a blob of more than ``max_blob_bytes``.
    """

    ttl_ms: int
    max_blob_bytes: int
    max_bytes: int
    max_count: int
    max_trace_bytes: int
    max_trace_count: int
    strategy: Strategy = "lru"

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """Count and bytes of the scope, count and bytes of a trace."""
        return self.max_count, self.max_bytes, self.max_trace_count, self.max_trace_bytes

    def largest(self, *, traced: bool) -> int:
        """Return how many bytes a blob may have; -1 if there may be none at all."""
        if self.strategy == "none":
            return self.max_blob_bytes
        counts = (self.max_count, self.max_trace_count)[: 1 + traced]
        sizes = (self.max_blob_bytes, self.max_bytes, self.max_trace_bytes)[: 2 + traced]
        return min(sizes) if min(counts) > 0 else -1


@dataclass(slots=True)
class Upload:
    """Bytes on their way: where they are put, how many, and what they hash to so far."""

    key: str
    trace: str | None
    size: int = 0
    chunks: int = 0
    # A chunk was sent, whatever became of it.
    begun: bool = False
    rest: bytearray = field(default_factory=bytearray)
    sha256: Any = field(default_factory=hashlib.sha256)


class Blobs:
    """The blobs of one scope."""

    def __init__(self, scripts: Scripts, keys: BlobKeys, quota: Quota) -> None:
        self._scripts = scripts
        self._keys = keys
        self._quota = quota

    def begin(self, *, trace: str | None) -> Upload:
        """Begin an upload. One that goes no further is gone after a quarter of an hour."""
        return Upload(self._keys.upload(secrets.token_hex(8)), trace)

    async def add(self, upload: Upload, data: bytes) -> None:
        """Add bytes to an upload.

        Errors: InvalidField, before any of them is sent, if it is more than a blob may have.
        """
        try:
            view = memoryview(data).cast("B")
        except TypeError:
            raise InvalidField("data", f"bytes are needed, not {type(data).__name__}") from None
        largest = self._quota.largest(traced=upload.trace is not None)
        upload.size += len(view)
        if upload.size > largest:
            raise InvalidField(
                "data", f"its size ({upload.size} bytes) exceeds limit ({max(largest, 0)} bytes)"
            )
        while view:
            room = CHUNK_BYTES - len(upload.rest)
            upload.rest += view[:room]
            view = view[room:]
            if len(upload.rest) == CHUNK_BYTES:
                await self._send(upload)

    async def finish(self, upload: Upload) -> str:
        """Send what is left of an upload, and return the SHA-256 of the whole."""
        if upload.rest:
            await self._send(upload)
        return str(upload.sha256.hexdigest())

    def drop(self, upload: Upload) -> None:
        """Delete an upload, without waiting for it.

        Its key is never used again: a repetition finds nothing.
        """
        self._scripts.transport.commands.unlink(upload.key)

    async def commit(
        self, upload: Upload, blob_id: str, ref: bytes, *, reference_ttl_ms: int | None = None
    ) -> bytes:
        """Make a finished upload a blob of the scope and return its reference, once per id.

        One step, which evicts what the limits ask for. A blob of this id that is there stays as
        it is, with the reference it has, and lives on. With ``reference_ttl_ms`` the same step
        keeps the reference as a record, which has that lifetime whatever becomes of the blob.
        Errors: OutcomeUnknown if the upload is gone; BackendUnavailable if others evict and store
        so fast that room is never found.
        """
        write = new_write_id() if reference_ttl_ms is not None else ""
        victims: list[str] = []
        for _ in range(_ROUNDS):
            reply = await self._scripts.commit_blob(
                self._keys,
                upload.key,
                blob_id=blob_id,
                ref=ref,
                size=upload.size,
                chunks=upload.chunks,
                trace=upload.trace,
                ttl_ms=self._quota.ttl_ms,
                write=write,
                reference_ttl_ms=reference_ttl_ms,
                strategy=self._quota.strategy,
                limits=self._quota.limits,
                victims=victims,
            )
            if reply.word is ReplyCode.OK:
                stored: bytes = reply.facts[0]
                return stored
            if reply.word is ReplyCode.MISSING:
                raise OutcomeUnknown(upload.key, "the upload is gone: expired, or committed before")
            victims = [_text(victim) for victim in reply.facts]
        raise BackendUnavailable(upload.key, "no room was found among so many other writers")

    async def keep_reference(self, blob_id: str, *, ttl_ms: int, again: bool = False) -> None:
        """Keep the reference of a blob as a record, unless it was. One step; nothing without it.

        With ``again`` also one that was kept and has expired since: it is the same record.
        """
        await self._scripts.keep_reference(
            self._keys,
            blob_id=blob_id,
            write=new_write_id(),
            reference_ttl_ms=ttl_ms,
            again=again,
        )

    async def refs(self, blob_ids: Sequence[str]) -> list[bytes | None]:
        """Return the references of blobs, None for those that are not there."""
        commands = self._scripts.transport.commands
        keys = [self._keys.blob(blob_id) for blob_id in blob_ids]
        return list(await asyncio.gather(*(commands.hget(key, "ref") for key in keys)))

    async def ids(self) -> list[str]:
        """Return the blobs that have not expired, the first to expire first."""
        reply = await self._scripts.list_blobs(self._keys)
        return [_text(blob_id) for blob_id in reply.facts[0]]

    async def read(self, blob_id: str) -> AsyncGenerator[bytes, None]:
        """Yield a blob's bytes in chunks; nothing if it does not exist.

        Record the use, if the server takes writes. Errors: LostRace if the blob is evicted, deleted
        or expires meanwhile.
        """
        key = self._keys.blob(blob_id)
        commands = self._scripts.transport.commands
        chunks: bytes | None = await commands.hget(key, "chunks")
        if chunks is None:
            return
        if self._quota.strategy == "lru":
            # Nobody waits for it: a reader does not wait for replicas.
            unawaited(self._scripts.begin_touch_blob(self._keys, blob_id=blob_id))
        gone = LostRace(f"{key}: the blob went away while it was read")
        async for chunk in read_chunks(commands, key, range(int(chunks)), missing=gone):
            yield chunk

    async def delete(self, blob_id: str) -> tuple[bool, int]:
        """Delete a blob; return whether it was there, and how many are left."""
        reply = await self._scripts.delete_blob(self._keys, blob_id=blob_id)
        return bool(reply.facts[0]), int(reply.facts[1])

    async def _send(self, upload: Upload) -> None:
        chunk, upload.begun = bytes(upload.rest), True
        await self._scripts.stage_chunk(
            upload.key, number=upload.chunks, data=chunk, ttl_ms=_UPLOAD_TTL_MS
        )
        upload.chunks += 1
        upload.sha256.update(chunk)
        upload.rest.clear()


async def read_chunks(
    commands: Commands, key: str, names: Iterable[str | bytes | int], *, missing: Exception
) -> AsyncGenerator[bytes, None]:
    """Yield chunks, which are fields of one hash. A few are prefetched. Errors: ``missing``."""
    requested: deque[asyncio.Future[bytes | None]] = deque()
    left = iter(names)
    while True:
        requested.extend(
            commands.hget(key, name) for name in islice(left, _READ_AHEAD - len(requested))
        )
        if not requested:
            return
        chunk = await requested.popleft()
        if chunk is None:
            raise missing
        yield chunk


def _text(blob_id: bytes) -> str:
    return blob_id.decode("utf-8", "surrogatepass")
