"""The artifacts of a session: references of the archive and of Redis, and which bytes are there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from redis_state.archive.encoding import moment_of_us
from redis_state.archive.model import RecordKind, RecordPlace
from redis_state.archive.protocol import Archive
from redis_state.models import ArtifactRef
from redis_state.store import RedisStateStore

_PAGE = 500


@dataclass(frozen=True, slots=True)
class KeptArtifact:
    """An artifact that Redis or the archive knows.

    ``stored``: Redis has its bytes now. ``made_at`` is the server's time at which its reference was
    kept first; None for one that was put without `archive_classes`.
    """

    ref: ArtifactRef
    made_at: datetime | None
    stored: bool


async def kept_artifacts(
    store: RedisStateStore, archive: Archive, session_id: str
) -> list[KeptArtifact]:
    """Read the artifacts of a session, of Redis first: what leaves it meanwhile was archived."""
    artifacts = store.artifact_store
    live = {ref.id: ref for ref in await artifacts.stored(session_id)}
    kept = {ref.id: (born_us, ref) for born_us, ref in await artifacts.references(session_id)}
    found = await _archived(store, archive, session_id) | kept
    # Redis may have bytes of one whose reference has expired there: it is known since it was kept.
    times = {artifact_id: born_us for artifact_id, (born_us, _) in found.items()}
    refs = {artifact_id: ref for artifact_id, (_, ref) in found.items()} | live
    ordered = sorted(refs, key=lambda each: (each not in times, times.get(each, 0), each))
    return [
        KeptArtifact(
            refs[each],
            made_at=moment_of_us(times[each]) if each in times else None,
            stored=each in live,
        )
        for each in ordered
    ]


async def _archived(
    store: RedisStateStore, archive: Archive, session_id: str
) -> dict[str, tuple[int, ArtifactRef]]:
    """Return of each archived artifact the reference that was made last, with its time."""
    found: dict[str, tuple[int, ArtifactRef]] = {}
    after: RecordPlace | None = None
    while page := await archive.records(RecordKind.ARTIFACT, session_id, after=after, limit=_PAGE):
        for record in page:
            read = partial(store.artifact_store.read, record.data)
            place = f"artifact {record.key}"
            ref = store.base.attempt(record.owner, place, record.data, read)
            if ref is not None:
                found[record.key] = record.born_us, ref
        after = page[-1].place
    return found
