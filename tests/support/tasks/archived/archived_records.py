"""Records that are saved and archived, and what of them is lost, or there twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from redis_state import RedisStateStore
from redis_state.agents.storage.session_store import SessionStore
from redis_state.archive.copying.records import RecordArchiver, RecordReport
from redis_state.archive.copying.sources import RecordReader
from redis_state.archive.encoding import OWN_FIELDS, json_of
from redis_state.archive.model import ArchivedRecord, RecordKind
from redis_state.archive.protocol import Archive
from redis_state.archive.reading.history import row_of
from redis_state.models import ArtifactScope, StoredEvent, Trajectory
from redis_state.primitives.record import new_write_id
from redis_state.stores.archive_list import RecordList
from tests.support.agents.sessions import fresh
from tests.support.processes.pools import SESSION
from tests.support.tasks.archived.archives import due

TRACES = ("one", "two")
_ROUNDS = 50


async def records_due(store: RedisStateStore) -> None:
    """Make all records on the archive's list due."""
    await due(store, store.base.keys.archive_records)


async def archive_records(
    store: RedisStateStore, archive: Archive, archiver: RecordArchiver | None = None
) -> RecordReport:
    """Run an archiver of records until none waits; return what it did."""
    archiver, total = archiver or RecordArchiver(store, archive), RecordReport()
    for _ in range(_ROUNDS):
        await records_due(store)
        total += await archiver.run_once()
        if not (await RecordList(store.base).backlog()).records:
            return total
    raise AssertionError(f"records still wait after {_ROUNDS} rounds: {total}")


async def save_records(store: RedisStateStore) -> None:
    """Save a new state of each record of the classes that the store archives."""
    if "trajectories" in store.settings.archive_classes:
        for trace in TRACES:
            await store.save_trajectory(trace, SESSION, Trajectory(query=new_write_id()))
    if "events" in store.settings.archive_classes:
        for trace in TRACES:
            await store.save_events([event_of(trace, new_write_id()) for _ in range(2)])
    if "artifacts" in store.settings.archive_classes:
        scope = ArtifactScope(session_id=SESSION)
        for name in TRACES:
            # Their bytes are gone before they are archived, and put again in the next round.
            ref = await store.artifact_store.put_text(name, scope=scope, meta={"w": new_write_id()})
            await store.artifact_store.delete(ref.id)
    if "agent_sessions" in store.settings.archive_classes:
        sessions = SessionStore(store)
        found = await sessions.load(SESSION)
        if found is None:
            await sessions.create(fresh(SESSION))
        else:
            await sessions.save(found)


def event_of(trace: str, content: str) -> StoredEvent:
    """Make an audit event that no other equals."""
    return StoredEvent(
        trace_id=trace,
        ts=1.0,
        kind="node_done",
        node_name="n",
        node_id="1",
        payload={"content": content},
    )


async def archived_events(archive: Archive, trace_id: str) -> list[ArchivedRecord]:
    """Return all archived events of a trace, in the order of their places."""
    found: list[ArchivedRecord] = []
    while True:
        after = found[-1].place if found else None
        page = await archive.records(RecordKind.EVENT, trace_id, after=after, limit=500)
        if not page:
            return found
        found += page


async def problems_of(
    store: RedisStateStore, archive: Archive, *, complete: bool = False
) -> list[str]:
    """Tell what Redis has and the archive has not, as it is; and what is there twice.

    ``complete``: all records are there.
    """
    problems: list[str] = []
    reader = RecordReader(store)
    for kind, key in await _expected(store, archive):
        record = reader.sources[kind].keys(SESSION, key).record
        fields = await store.transport.commands.hgetall(record)
        live = dict(zip(fields[::2], fields[1::2], strict=True))
        found = await archive.records(kind, SESSION, key=key)
        if not live:
            problems += [f"{kind} {key} is not there"] if complete or found else []
            continue
        stamp = f"{live[b'version'].decode()} {live[b'write'].decode()}"
        if live.get(b"archived") != stamp.encode():
            problems.append(f"{kind} {key} is not marked")
        state = stamp, hashlib.sha256(_content(kind, live)).hexdigest()
        kept = [(each.stamp, each.digest()) for each in found]
        if kept != [state]:
            problems.append(f"{kind} {key} differs: {kept} is not {state}")
    if "events" in store.settings.archive_classes:
        for trace in TRACES:
            rows = await store.events.log(trace).read_all()
            copies = [row_of(each) for each in await archived_events(archive, trace)]
            if copies != rows or (complete and len(rows) < 2):
                problems.append(f"events of {trace} differ: {len(copies)} of {len(rows)}")
    if "artifacts" in store.settings.archive_classes:
        problems += await _artifact_problems(store, complete=complete)
    if (await RecordList(store.base).backlog()).oldest_s:
        problems.append("something waits")
    return problems


def _content(kind: RecordKind, live: Mapping[bytes, bytes]) -> bytes:
    """Return what the archive must have of a record that stands in Redis, byte for byte."""
    if kind is not RecordKind.AGENT_SESSION:
        return live[b"document"]
    return json_of({name: live[name] for name in live.keys() - set(OWN_FIELDS)}).encode()


async def _expected(store: RedisStateStore, archive: Archive) -> list[tuple[RecordKind, str]]:
    found: list[tuple[RecordKind, str]] = []
    if "trajectories" in store.settings.archive_classes:
        found += [(RecordKind.TRAJECTORY, trace) for trace in TRACES]
    if "agent_sessions" in store.settings.archive_classes:
        found.append((RecordKind.AGENT_SESSION, ""))
    if "artifacts" in store.settings.archive_classes:
        known = {ref.id for _, ref in await store.artifact_store.references(SESSION)}
        known |= {each.key for each in await archive.records(RecordKind.ARTIFACT, SESSION)}
        found += [(RecordKind.ARTIFACT, each) for each in sorted(known)]
    return found


async def _artifact_problems(store: RedisStateStore, *, complete: bool) -> list[str]:
    kept = {ref.id for _, ref in await store.artifact_store.references(SESSION)}
    stored = {ref.id for ref in await store.artifact_store.stored(SESSION)}
    problems = [f"artifact {each} has no reference" for each in stored - kept]
    if complete and len(kept) != len(TRACES):
        problems.append(f"{len(kept)} artifacts")
    return problems
