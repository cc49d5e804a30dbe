"""Artifacts: what tools produce, kept beside a session within its limits.

An artifact's id ends with the place of its session, so that it is found by its id alone. All of a
session's artifacts share a slot; an index names the sessions that have some.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any, cast

from redis_state import limits
from redis_state.errors import CorruptState, InvalidField, LostRace
from redis_state.models.artifacts import ArtifactRef, ArtifactRetentionConfig, ArtifactScope
from redis_state.primitives.blob import Blobs, Quota, Upload
from redis_state.primitives.listed import write_listed
from redis_state.primitives.record import Place, Stored
from redis_state.serialization import codec
from redis_state.serialization.fields import optional_text
from redis_state.serialization.lossy import whole_text
from redis_state.stores.archive_list import artifact_entry, record_list
from redis_state.stores.artifact_ids import (
    SESSION_OF_NONE,
    artifact_id_of,
    owning_session,
    place_of,
)
from redis_state.stores.base import Base, ms
from redis_state.transport.keys import artifact_place

# Hosts keep large values of a session's memory here, and the memory that names them lives longer.
_OF_MEMORY = "session_kv"


class ArtifactStore:
    """Put, get, list and delete artifacts. The same bytes in two sessions are two artifacts."""

    def __init__(
        self,
        base: Base,
        retention: ArtifactRetentionConfig | None = None,
        *,
        ref_type: type[Any] = ArtifactRef,
    ) -> None:
        self._base = base
        self._ref_type = ref_type
        retention = retention or ArtifactRetentionConfig()
        self._quota = Quota(
            ttl_ms=_lifetime_ms(retention.ttl_seconds),
            max_blob_bytes=retention.max_artifact_bytes,
            max_bytes=retention.max_session_bytes,
            max_count=retention.max_artifacts_per_session,
            max_trace_bytes=retention.max_trace_bytes,
            max_trace_count=retention.max_artifacts_per_trace,
            strategy=retention.cleanup_strategy,
        )
        # 0 is for ever already.
        lasting_ms = self._quota.ttl_ms and max(self._quota.ttl_ms, ms(base.settings.memory_ttl))
        self._lasting = replace(self._quota, ttl_ms=lasting_ms)
        self._archived = record_list(base, "artifacts")
        self._references_ms = ms(base.settings.artifact_references_ttl)

    async def put_bytes(
        self,
        data: bytes,
        *,
        mime_type: str | None = None,
        filename: str | None = None,
        namespace: str | None = None,
        scope: ArtifactScope | None = None,
        meta: dict[str, Any] | None = None,
    ) -> ArtifactRef:
        """Store bytes and return their reference; the same bytes again are the same artifact.

        That one keeps the reference it has and lives on from now. Errors: ValueError, before
        anything is sent, if they are more than an artifact, its session or its trace may have;
        OutcomeUnknown, also if they are stored, and the server goes away before that is listed.
        """
        about = {"mime_type": mime_type, "filename": filename, "namespace": namespace}
        return await self._put(_only(data), about, scope, meta)

    async def put_text(
        self,
        text: str,
        *,
        mime_type: str = "text/plain",
        filename: str | None = None,
        namespace: str | None = None,
        scope: ArtifactScope | None = None,
        meta: dict[str, Any] | None = None,
    ) -> ArtifactRef:
        """Store text as UTF-8, lone surrogates as they are. Like `put_bytes`."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidField("text", f"text is needed, not {type(text).__name__}")
        about = {"mime_type": mime_type, "filename": filename, "namespace": namespace}
        data = text.encode("utf-8", "surrogatepass")
        return await self._put(_only(data), about, scope, meta)

    async def put_stream(
        self,
        chunks: AsyncIterable[bytes],
        *,
        mime_type: str | None = None,
        filename: str | None = None,
        namespace: str | None = None,
        scope: ArtifactScope | None = None,
        meta: dict[str, Any] | None = None,
    ) -> ArtifactRef:
        """Store bytes as they come, without holding them in memory. Like `put_bytes`.

        What was sent of a stream that breaks off is dropped, at the latest after 15 minutes.
        Errors: ValueError once it is too long.
        """
        about = {"mime_type": mime_type, "filename": filename, "namespace": namespace}
        return await self._put(chunks, about, scope, meta)

    async def open_read(self, artifact_id: str) -> AsyncGenerator[bytes, None]:
        """Yield an artifact's bytes in chunks; nothing if it is not there.

        Close it (``contextlib.aclosing``) if you stop early. Errors: LostRace if the artifact is
        evicted, deleted or expires meanwhile.
        """
        blobs = self._find(artifact_id)
        if blobs is not None:
            async with aclosing(blobs.read(artifact_id)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def get(self, artifact_id: str) -> bytes | None:
        """Return an artifact's bytes, or None, also if it goes away while it is read."""
        try:
            data = b"".join([chunk async for chunk in self.open_read(artifact_id)])
        except LostRace:
            return None
        # Nothing was read of an empty one, nor of one that is not there.
        return data if data or await self.exists(artifact_id) else None

    async def get_ref(self, artifact_id: str) -> ArtifactRef | None:
        """Return an artifact's reference, or None."""
        blobs = self._find(artifact_id)
        data = None if blobs is None else (await blobs.refs([artifact_id]))[0]
        return None if data is None else self._read(data)

    async def reference(self, artifact_id: str, session_id: str | None) -> ArtifactRef | None:
        """Return the reference of a session's artifact, also once its bytes are gone, or None.

        It is kept that long if `archive_classes` has artifacts. No session is ``default``.
        """
        place = artifact_place(SESSION_OF_NONE if session_id is None else session_id)
        if place_of(artifact_id) != place:
            return None
        live = await self.get_ref(artifact_id)
        if live is not None:
            return live
        key = self._base.keys.artifacts(place).reference(artifact_id)
        flat = self._base.fetch(key)
        return await self._base.read_record(
            "artifacts", "a reference", flat, lambda found: self.read(found.fields["document"])
        )

    async def references(self, session_id: str) -> Sequence[tuple[int, ArtifactRef]]:
        """Return a session's references that are kept beside the bytes, with their times in us.

        They are in the order of these times. See `reference`.
        """
        return await self._references(artifact_place(session_id))

    async def stored(self, session_id: str) -> Sequence[ArtifactRef]:
        """Return the references of a session's artifacts whose bytes are there."""
        return await self._stored(artifact_place(session_id))

    async def keep_references(
        self, *, again: bool = False
    ) -> AsyncGenerator[Sequence[ArtifactRef], None]:
        """Keep the reference of each artifact that has none beside its bytes; yield all references.

        Each page has those of one session. With ``again`` references are kept that have expired
        before their bytes, as the same records. May be repeated.
        """
        for place in await self._base.records.members(self._base.keys.artifact_sessions()):
            blobs = self._blobs(place)
            own = [ref.id for ref in await self._stored(place) if ref.namespace != _OF_MEMORY]
            await asyncio.gather(
                *(
                    blobs.keep_reference(each, ttl_ms=self._references_ms, again=again)
                    for each in own
                )
            )
            found = await self._references(place)
            if found:
                await self._note(place, self._quota)
            yield [ref for _, ref in found]

    async def get_with_session_check(self, artifact_id: str, session_id: str) -> bytes | None:
        """Return an artifact's bytes if it is this session's, else None."""
        if place_of(artifact_id) != artifact_place(session_id):
            return None
        return await self.get(artifact_id)

    async def exists(self, artifact_id: str) -> bool:
        """Return whether an artifact is there."""
        blobs = self._find(artifact_id)
        return blobs is not None and await blobs.refs([artifact_id]) != [None]

    async def delete(self, artifact_id: str) -> bool:
        """Delete an artifact; return whether it was there."""
        place = place_of(artifact_id)
        return False if place is None else await self._delete(place, artifact_id)

    async def list(self, *, scope: ArtifactScope | None = None) -> list[ArtifactRef]:
        """List the artifacts that match a scope, each session's first to expire first.

        A field of the scope that is None matches all; an artifact without that field matches
        only None.
        """
        index = self._base.keys.artifact_sessions()
        if scope is None or scope.session_id is None:
            places = await self._base.records.members(index)
        else:
            places = [artifact_place(scope.session_id)]
        found: list[ArtifactRef] = []
        for place in places:
            found += [ref for ref in await self._stored(place) if _matches(ref.scope, scope)]
        return found

    async def clear(self, session_id: str) -> None:
        """Delete a session's artifacts. Those without a session are of session ``default``.

        References that are kept beside the bytes go too, also those that wait for the archive.
        """
        place, records = artifact_place(session_id), self._base.records
        keys = self._base.keys.artifacts(place)
        ids, kept = await asyncio.gather(self._blobs(place).ids(), records.members(keys.references))
        await asyncio.gather(
            *(
                records.delete(keys.reference(each), place=Place(keys.references, each))
                for each in kept
            )
        )
        await asyncio.gather(*(self._delete(place, artifact_id) for artifact_id in ids))
        # A store that was cut off before its commit has listed the place of nothing.
        if kept or not ids:
            await self._unlist(place)

    async def _stored(self, place: str) -> Sequence[ArtifactRef]:
        blobs = self._blobs(place)
        found = [
            None if data is None else self._read(data)
            for data in await blobs.refs(await blobs.ids())
        ]
        return [ref for ref in found if ref is not None]

    async def _references(self, place: str) -> Sequence[tuple[int, ArtifactRef]]:
        keys = self._base.keys.artifacts(place)

        def read(_: str, found: Stored) -> tuple[int, ArtifactRef]:
            return found.order, self.read(found.fields["document"])

        return await self._base.list_ordered(
            "artifacts", "reference", keys.references, key_of=keys.reference, read=read
        )

    async def _put(
        self,
        chunks: AsyncIterable[bytes],
        about: dict[str, str | None],
        scope: ArtifactScope | None,
        meta: dict[str, Any] | None,
    ) -> ArtifactRef:
        for name, value in cast("dict[str, Any]", about).items():
            # Nobody could read the reference, nor that of the same bytes.
            if not isinstance(value, PurePath):
                optional_text(name, value)
        place = artifact_place(owning_session(scope))
        quota = self._lasting if about["namespace"] == _OF_MEMORY else self._quota
        blobs = Blobs(self._base.scripts, self._base.keys.artifacts(place), quota)
        upload = blobs.begin(trace=scope.trace_id if scope else None)
        try:
            async for chunk in chunks:
                await blobs.add(upload, chunk)
            # Its place is listed before it: a crash behind the commit leaves it found.
            digest, _ = await asyncio.gather(blobs.finish(upload), self._note(place, quota))
            artifact_id = artifact_id_of(about["namespace"], digest, scope, place)
            ref = {
                "id": artifact_id,
                "size_bytes": upload.size,
                "sha256": digest,
                "scope": scope,
                "source": dict(meta or {}),
                **about,
            }
            # Again behind it: a delete may have found the place empty, and unlisted it.
            stored = await write_listed(
                partial(self._commit, blobs, upload, ref, owning_session(scope)),
                partial(self._note, place, quota),
                doubts=(),
                address=self._base.scripts.transport.address,
            )
        except BaseException:
            if upload.begun:
                blobs.drop(upload)
            raise
        return self._read(stored) or self._unreadable(artifact_id)

    async def _commit(
        self, blobs: Blobs, upload: Upload, ref: dict[str, Any], session_id: str
    ) -> bytes:
        """Commit an artifact, with its reference as a record if the archive is to have that."""
        commit = partial(blobs.commit, upload, ref["id"], codec.encode(ref))
        if self._archived is None or ref["namespace"] == _OF_MEMORY:
            return await commit()
        return await self._archived.covering(
            artifact_entry(session_id, ref["id"]),
            partial(commit, reference_ttl_ms=self._references_ms),
        )

    async def _delete(self, place: str, artifact_id: str) -> bool:
        deleted, left = await self._blobs(place).delete(artifact_id)
        if not left:
            await self._unlist(place)
        return deleted

    async def _unlist(self, place: str) -> None:
        """Take a place out of the index of places, unless it has something."""
        # A concurrent store records the place after storing: if that was just undone, what was
        # stored is seen here. Nothing is undone if it was not listed.
        reply = await self._base.scripts.zrem(self._base.keys.artifact_sessions(), place)
        if not int(reply.facts[0]):
            return
        if await self._blobs(place).ids():
            await self._note(place, self._lasting)
        elif self._archived is not None and await self._references(place):
            await self._note(place, replace(self._quota, ttl_ms=self._references_ms))

    async def _note(self, place: str, quota: Quota) -> None:
        ttl_ms = quota.ttl_ms
        if self._archived is not None and ttl_ms:
            ttl_ms = max(ttl_ms, self._references_ms)
        await self._base.scripts.add_member(
            self._base.keys.artifact_sessions(), member=place, ttl_ms=ttl_ms
        )

    def _find(self, artifact_id: str) -> Blobs | None:
        place = place_of(artifact_id)
        return None if place is None else self._blobs(place)

    def _blobs(self, place: str) -> Blobs:
        return Blobs(self._base.scripts, self._base.keys.artifacts(place), self._quota)

    def read(self, data: bytes) -> ArtifactRef:
        """Read a stored reference. Errors: ValueError, and those of the host's type."""
        ref: ArtifactRef = self._ref_type.model_validate(codec.decode(data))
        return ref

    def _read(self, data: bytes) -> ArtifactRef | None:
        return self._base.attempt("artifacts", "a reference", data, partial(self.read, data))

    def _unreadable(self, artifact_id: str) -> ArtifactRef:
        raise CorruptState(artifact_id, "it is there, but its reference cannot be read")


def _lifetime_ms(ttl_seconds: int) -> int:
    """Return how long artifacts are kept, 0 for ever. A server refuses more than many lives."""
    return int(min(max(0, ttl_seconds), limits.LONGEST_S) * 1000)


async def _only(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


def _matches(found: ArtifactScope | None, wanted: ArtifactScope | None) -> bool:
    if wanted is None:
        return True
    names = ("tenant_id", "user_id", "session_id", "trace_id")
    given = {name: getattr(wanted, name) for name in names}
    # As it comes back from JSON.
    requested = {name: whole_text(value) for name, value in given.items() if value is not None}
    return all(found is not None and getattr(found, name) == requested[name] for name in requested)
