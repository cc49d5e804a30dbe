"""References of artifacts in the archive: they outlive the bytes, each once, and are erased."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

pytest.importorskip("psycopg", reason="needs the postgres extra")
pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("typer", reason="needs the cli extra")

from redis_state import RedisStateStore, Settings, TaskClient
from redis_state.archive import open_archive
from redis_state.archive.copying.records import RecordArchiver
from redis_state.archive.model import ArchiveBatch, ArchivedRecord, RecordKind
from redis_state.archive.protocol import Archive
from redis_state.erasure import Eraser
from redis_state.errors import ArchiveUnavailable, ConfigError
from redis_state.models import ArtifactRef, ArtifactRetentionConfig, ArtifactScope
from redis_state.stores.archive_list import RecordList, artifact_entry
from redis_state.stores.artifacts import ArtifactStore
from redis_state.transport.keys import WATCH_SHARDS, artifact_place
from redis_state.transport.sending.calls import CallSender
from redis_state.worker.archiving.again import enlist_records
from tests.integration.archive.copying.test_any_ids import IDS
from tests.support.commands import cli
from tests.support.tasks.archived.archived_records import archive_records, records_due
from tests.support.tasks.crash_states import send

SESSION = "session"
SCOPE = ArtifactScope(tenant_id="acme", session_id=SESSION, trace_id="trace")
DAY_MS = 86_400_000


@pytest.fixture
def archiving(archiving: Settings) -> Settings:
    """Give settings that also archive artifacts."""
    return archiving.model_copy(update={"archive_classes": frozenset({"artifacts"})})


async def put(store: RedisStateStore, text: str, session: str = SESSION) -> ArtifactRef:
    scope = SCOPE.model_copy(update={"session_id": session})
    return await store.artifact_store.put_text(text, filename="f.txt", scope=scope, meta={"a": 1})


async def kept(archive: Archive, session: str = SESSION) -> list[ArchivedRecord]:
    return await archive.records(RecordKind.ARTIFACT, session)


def reference_of(store: RedisStateStore, ref: ArtifactRef, session: str = SESSION) -> str:
    return store.base.keys.artifacts(artifact_place(session)).reference(ref.id)


async def expire(store: RedisStateStore, ref: ArtifactRef) -> None:
    """Have a reference expire, as it does once its lifetime is over. It must be archived."""
    key = reference_of(store, ref)
    assert await send(store, "HEXISTS", key, "archived") == 1
    await send(store, "DEL", key)


async def test_a_reference_is_read_once_the_bytes_and_it_are_gone(
    live: RedisStateStore, archive: Archive
) -> None:
    ref = await put(live, "some bytes")
    assert (await archive_records(live, archive)).copied == {"artifacts": 1}
    (record,) = await kept(archive)
    assert (record.owner, record.key) == (SESSION, ref.id)
    assert b"some bytes" not in record.data
    (before,) = await live.archive.artifacts(SESSION)
    assert (before.ref, before.stored) == (ref, True)
    assert before.made_at is not None
    assert datetime.now(UTC) - before.made_at < timedelta(hours=1)
    assert await live.artifact_store.delete(ref.id)
    assert await live.archive.artifact(ref.id, SESSION) == ref
    await expire(live, ref)
    assert await live.artifact_store.reference(ref.id, SESSION) is None
    assert await live.archive.artifact(ref.id, SESSION) == ref
    assert await live.archive.artifacts(SESSION) == [replace(before, stored=False)]
    (value,) = await live.archive.records(RecordKind.ARTIFACT, SESSION)
    assert value.value == ref
    assert await live.archive.artifact(ref.id, "other") is None
    assert await live.archive.artifact("none", SESSION) is None


async def test_the_same_bytes_are_archived_once_while_they_are_there(
    live: RedisStateStore, archive: Archive
) -> None:
    ref = await put(live, "one")
    await archive_records(live, archive)
    assert await put(live, "one") == ref
    assert (await archive_records(live, archive)).copied == {}
    # The bytes may outlive their reference.
    await expire(live, ref)
    assert await put(live, "one") == ref
    assert (await archive_records(live, archive)).copied == {}
    assert len(await kept(archive)) == 1
    # Put again after they were deleted, they are another artifact of this id.
    await live.artifact_store.delete(ref.id)
    again = await live.artifact_store.put_text("one", filename="g.txt", scope=SCOPE)
    assert again.id == ref.id
    assert (await archive_records(live, archive)).copied == {"artifacts": 1}
    assert len(await kept(archive)) == 2
    # While Redis has the reference of a deleted one, the new reference replaces it.
    await live.artifact_store.delete(ref.id)
    await put(live, "one")
    await archive_records(live, archive)
    found = [each.value for each in await live.archive.records(RecordKind.ARTIFACT, SESSION)]
    assert found == [ref, ref]
    await live.artifact_store.delete(ref.id)
    await expire(live, ref)
    assert await live.archive.artifact(ref.id, SESSION) == ref
    assert [each.ref for each in await live.archive.artifacts(SESSION)] == [ref]


async def test_what_is_evicted_before_it_is_archived_is_not_lost(
    live: RedisStateStore, archive: Archive
) -> None:
    few = ArtifactStore(live.base, ArtifactRetentionConfig(max_artifacts_per_session=2))
    puts = (few.put_text(f"{n % 20}", scope=SCOPE) for n in range(40))
    refs = {ref.id: ref for ref in await asyncio.gather(*puts)}
    assert len(refs) == 20
    assert len(await live.artifact_store.list()) == 2
    assert (await archive_records(live, archive)).copied == {"artifacts": 20}
    found = await live.archive.artifacts(SESSION)
    assert {each.ref.id: each.ref for each in found} == refs
    assert sum(each.stored for each in found) == 2


async def test_nothing_is_sent_unless_the_class_is_chosen(
    live: RedisStateStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sent = CallSender.run, list[str]()

    def watched(sender: CallSender, what: Any, *more: Any, **options: Any) -> asyncio.Future[Any]:
        sent.append(what.script.name)
        return run(sender, what, *more, **options)

    async with RedisStateStore(settings) as plain:
        monkeypatch.setattr(CallSender, "run", watched)
        ref = await put(plain, "one")
        assert sent == ["stage_chunk", "add_member", "commit_blob", "add_member"]
    assert await send(live, "EXISTS", reference_of(live, ref)) == 0
    sent.clear()
    # Put where the class is chosen, it gets the reference that it lacks.
    await put(live, "one")
    assert sent.index("watch_since") < sent.index("commit_blob")
    assert await send(live, "EXISTS", reference_of(live, ref)) == 1


async def test_values_of_memory_are_not_archived(live: RedisStateStore, archive: Archive) -> None:
    ref = await live.artifact_store.put_text("large", namespace="session_kv", scope=SCOPE)
    assert (await RecordList(live.base).backlog()).records == 0
    assert (await enlist_records(live)).counts == {"artifacts": 0}
    assert await live.archive.artifact(ref.id, SESSION) == ref
    assert await kept(archive) == []


async def test_an_archive_that_is_away_keeps_references_and_no_bytes(
    live: RedisStateStore, archive: Archive, away: Archive
) -> None:
    ref = await put(live, "one")
    keys = live.base.keys.artifacts(artifact_place(SESSION))
    for key in (keys.reference(ref.id), keys.references, live.base.keys.artifact_sessions()):
        await send(live, "PEXPIRE", key, 3_600_000)
    await records_due(live)
    assert (await RecordArchiver(live, away).run_once()).postponed == 1
    for key in (keys.reference(ref.id), keys.references):
        assert await send(live, "PTTL", key) > 399 * DAY_MS
    assert await send(live, "PTTL", live.base.keys.artifact_sessions()) > DAY_MS
    for key in (keys.blob(ref.id), keys.about, keys.expiry, keys.use):
        assert 0 < await send(live, "PTTL", key) <= 3_600_000
    await archive_records(live, archive)
    assert len(await kept(archive)) == 1
    assert 0 < await send(live, "PTTL", keys.reference(ref.id)) <= 3_600_000


@pytest.mark.role("any", why="it takes keys back with RESTORE")
async def test_what_redis_has_after_a_rollback_replaces_what_is_archived(
    live: RedisStateStore, archive: Archive
) -> None:
    ref = await put(live, "one")
    key = reference_of(live, ref)
    before = await send(live, "DUMP", key)
    for name in ("f2", "f3"):
        await live.artifact_store.delete(ref.id)
        await live.artifact_store.put_text("one", filename=name, scope=SCOPE)
    await archive_records(live, archive)
    await send(live, "RESTORE", key, 3_600_000, before, "REPLACE")
    await live.artifact_store.delete(ref.id)
    await live.artifact_store.put_text("one", filename="other", scope=SCOPE)
    await archive_records(live, archive)
    found = await live.archive.records(RecordKind.ARTIFACT, SESSION)
    assert [each.value.filename for each in found] == ["other"]


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_a_session_that_is_erased_takes_its_references_with_it(
    live: RedisStateStore, archive: Archive
) -> None:
    ref, _ = await put(live, "one"), await put(live, "one", "other")
    await archive_records(live, archive)
    (read,) = await kept(archive)
    # Some wait when the session is erased, of which one has no bytes.
    for text in ("two", "three"):
        waits = await put(live, text)
    await live.artifact_store.delete(waits.id)
    async with Eraser(live, archive) as eraser:
        counted = await eraser.forget(SESSION, dry_run=True)
        report = await eraser.forget(SESSION)
    assert counted.archive == report.archive == {"tasks": 0, "updates": 0, "artifacts": 1}
    assert await live.archive.artifacts(SESSION) == []
    for shard in range(WATCH_SHARDS):
        for key_of in (live.base.keys.archive_records, live.base.keys.archive_records_since):
            assert b'"session"' not in b"".join(await send(live, "ZRANGE", key_of(shard), 0, -1))
    # Redis comes back from a backup of before: nothing of it is written again.
    key = reference_of(live, ref)
    await send(live, "HSET", key, "version", 9, "order", read.born_us, "document", read.data)
    await send(live, "PEXPIRE", key, DAY_MS // 2)
    await RecordList(live.base).covering(
        artifact_entry(SESSION, ref.id), lambda: send(live, "PING")
    )
    assert (await archive_records(live, archive)).erased == 1
    assert await kept(archive) == []
    assert 0 < await send(live, "PTTL", key) <= DAY_MS // 2
    await send(live, "DEL", key)
    assert len(await kept(archive, "other")) == 1
    await put(live, "new")
    await archive_records(live, archive)
    assert len(await kept(archive)) == 1


class _Meanwhile:
    """Has something happen while it erases."""

    def __init__(self, archive: Archive, call: Callable[[], Awaitable[object]]) -> None:
        self._archive, self._call = archive, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    async def forget(self, session_id: str, *, before_us: int | None = None) -> Any:
        was = await self._archive.forget(session_id, before_us=before_us)
        await self._call()
        return was


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_what_is_put_again_while_the_archive_erases_stays(
    live: RedisStateStore, archive: Archive
) -> None:
    # The keys of the second have a digest of its id.
    names = ("short", "long" * 40)
    store = live.artifact_store

    async def put_again() -> None:
        for name in names:
            await store.put_text("again", namespace=name, scope=SCOPE)

    await put_again()
    again = [ref.id for ref in await store.stored(SESSION)]
    gone = [await store.put_text("gone", namespace=name, scope=SCOPE) for name in names]
    meanwhile = cast("Archive", _Meanwhile(archive, put_again))
    async with Eraser(live, meanwhile) as eraser:
        await eraser.forget(SESSION)
        assert [await store.get(each) for each in again] == [b"again"] * 2
        assert {ref.id for _, ref in await store.references(SESSION)} == set(again)
        for ref in gone:
            books = live.base.keys.artifacts(artifact_place(SESSION))
            for key in (books.blob(ref.id), books.reference(ref.id)):
                assert await send(live, "EXISTS", key) == 0
        assert (await archive_records(live, archive)).copied == {"artifacts": 2}


class _AwayOnce:
    """Is away when something is to be erased, once."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.was_away: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)

    async def forget(self, session_id: str, *, before_us: int | None = None) -> Any:
        if not self.was_away:
            self.was_away = True
            raise ArchiveUnavailable("forget", "it is away")
        return await self._archive.forget(session_id, before_us=before_us)


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_a_user_is_forgotten_by_a_repetition_although_no_task_is_archived(
    live: RedisStateStore, archive: Archive
) -> None:
    async with TaskClient(live) as client:
        await client.submit(
            "work", session_id=SESSION, delay=timedelta(days=30), attributes={"user": "ann"}
        )
    await put(live, "one")
    await archive_records(live, archive)
    away = _AwayOnce(archive)
    async with Eraser(live, cast("Archive", away)) as eraser:
        with pytest.raises(ArchiveUnavailable):
            await eraser.forget_user("ann")
        assert away.was_away
        assert (await eraser.forget_user("ann")).archive["artifacts"] == 1
        assert (await eraser.forget_user("ann")).sessions == []
    assert await kept(archive) == []


@pytest.mark.role("any", why="it reads the names of all keys")
async def test_artifacts_of_no_session_are_erased_by_their_name(
    live: RedisStateStore, archive: Archive
) -> None:
    ref = await live.artifact_store.put_text("one")
    await archive_records(live, archive)
    assert len(await kept(archive, "default")) == 1
    assert await live.archive.artifact(ref.id, None) == ref
    assert [each.ref for each in await live.archive.artifacts("default")] == [ref]
    async with Eraser(live, archive) as eraser:
        report = await eraser.forget("default")
    assert report.archive["artifacts"] == 1
    assert await live.archive.artifact(ref.id, None) is None


async def test_old_references_are_removed_by_their_retention(
    live: RedisStateStore, archive: Archive
) -> None:
    old, new = await put(live, "old"), await put(live, "new")
    await archive_records(live, archive)
    (record,) = await archive.records(RecordKind.ARTIFACT, SESSION, key=old.id)
    aged = replace(record, at_us=record.at_us - 40 * DAY_MS * 1000, version=record.version + 1)
    stays = replace(aged, kind=RecordKind.TRAJECTORY)
    await archive.write(ArchiveBatch(records=[aged, stays]))
    before = {"artifacts": datetime.now(UTC) - timedelta(days=30)}
    for dry_run in (True, False):
        assert (await archive.retain(before, dry_run=dry_run)).rows == {"artifacts": 1}
    assert [each.key for each in await kept(archive)] == [new.id]
    assert len(await archive.records(RecordKind.TRAJECTORY, SESSION)) == 1


async def test_ids_and_values_are_any_text(live: RedisStateStore, archive: Archive) -> None:
    refs = {own: await put(live, own, own) for own in IDS}
    await archive_records(live, archive)
    for own, ref in refs.items():
        (found,) = await live.archive.records(RecordKind.ARTIFACT, own)
        assert (found.record.owner, found.record.key, found.value) == (own, ref.id, ref)
        assert await live.archive.artifact(ref.id, own) == ref


async def test_a_damaged_one_hinders_no_other(live: RedisStateStore, archive: Archive) -> None:
    refs = [await put(live, text) for text in ("one", "two")]
    await send(live, "HSET", reference_of(live, refs[0]), "order", str(10**30))
    await records_due(live)
    report = await RecordArchiver(live, archive).run_once()
    assert (report.copied, report.refused) == ({"artifacts": 1}, 1)


async def test_backfill_finds_earlier_ones_and_again_copies_all(
    live: RedisStateStore, archive: Archive, settings: Settings
) -> None:
    async with RedisStateStore(settings) as before:
        refs = [await put(before, "earlier", own) for own in IDS]
    assert (await enlist_records(live)).counts == {"artifacts": len(IDS)}
    await archive_records(live, archive)
    for own, ref in zip(IDS, refs, strict=True):
        (found,) = await live.archive.records(RecordKind.ARTIFACT, own)
        assert found.value == ref
    # An archive from a backup lacks them. Redis has a reference without bytes, too.
    assert await live.artifact_store.delete(refs[0].id)
    for own in IDS:
        await archive.forget(own)
    assert (await enlist_records(live)).counts == {"artifacts": len(IDS)}
    assert (await archive_records(live, archive)).copied == {}
    for _ in range(2):
        await enlist_records(live, again=True)
    assert (await archive_records(live, archive)).copied == {"artifacts": len(IDS)}
    assert [len(await kept(archive, own)) for own in IDS] == [1] * len(IDS)


async def test_again_copies_an_artifact_whose_reference_expired_before_its_bytes(
    live: RedisStateStore, archive: Archive
) -> None:
    refs = [await put(live, text) for text in ("one", "two")]
    await archive_records(live, archive)
    was = [each.place for each in await kept(archive)]
    # What is there is the same record.
    await expire(live, refs[0])
    await enlist_records(live, again=True)
    await archive_records(live, archive)
    assert [each.place for each in await kept(archive)] == was
    # An archive from a backup lacks it.
    await expire(live, refs[0])
    await archive.forget(SESSION)
    await enlist_records(live)
    assert (await archive_records(live, archive)).copied == {}
    for _ in range(2):
        assert (await enlist_records(live, again=True)).counts == {"artifacts": 2}
    assert (await archive_records(live, archive)).copied == {"artifacts": 2}
    assert [each.place for each in await kept(archive)] == was
    assert [each.ref for each in await live.archive.artifacts(SESSION)] == refs


async def test_a_place_is_listed_as_long_as_its_references(live: RedisStateStore) -> None:
    for_ever = ArtifactStore(live.base, ArtifactRetentionConfig(ttl_seconds=0))
    ref = await for_ever.put_text("one", scope=SCOPE)
    listed = live.base.keys.artifact_sessions()
    assert await send(live, "PTTL", listed) == -1
    assert await for_ever.delete(ref.id)
    assert 6 * DAY_MS < await send(live, "PTTL", listed) <= 7 * DAY_MS + 1_000
    assert (await enlist_records(live)).counts == {"artifacts": 1}
    await send(live, "DEL", reference_of(live, ref))
    await for_ever.put_text("two", namespace="session_kv", scope=SCOPE)
    for each in await for_ever.list():
        await for_ever.delete(each.id)
    assert await send(live, "EXISTS", listed) == 0


async def test_a_session_that_is_cleared_has_no_references(
    live: RedisStateStore, archive: Archive
) -> None:
    for _ in range(2):
        refs = [await put(live, text) for text in ("one", "two")]
        await live.artifact_store.delete(refs[0].id)
        await live.clear_session(SESSION)
        keys = live.base.keys.artifacts(artifact_place(SESSION))
        named = [keys.references, keys.about, live.base.keys.artifact_sessions()]
        named += [reference_of(live, ref) for ref in refs]
        assert [await send(live, "EXISTS", name) for name in named] == [0] * len(named)
    (ref,) = [await put(live, "one")]
    await live.artifact_store.delete(ref.id)
    await live.clear_session(SESSION)
    assert await send(live, "EXISTS", live.base.keys.artifact_sessions()) == 0
    assert (await archive_records(live, archive)).copied == {}
    assert await live.archive.artifacts(SESSION) == []


async def test_the_command_lists_them(
    live: RedisStateStore, archive: Archive, settings: Settings, archive_url: str
) -> None:
    gone, there = await put(live, "gone"), await put(live, "there")
    await archive_records(live, archive)
    await live.artifact_store.delete(gone.id)
    await expire(live, gone)
    own: dict[str, Any] = {"REDIS_STATE_ARCHIVE_URL": archive_url}
    ran = await cli(settings, "archive", "artifacts", SESSION, "--json", **own)
    assert ran.status == 0, ran.err
    shown = [(each["id"], each["sha256"], each["stored"]) for each in ran.document]
    assert shown == [(gone.id, gone.sha256, False), (there.id, there.sha256, True)]
    ran = await cli(settings, "archive", "artifacts", SESSION, **own)
    assert gone.id in ran.out
    assert "f.txt" in ran.out
    ran = await cli(settings, "archive", "status", "--json", **own)
    assert ran.document["artifacts"] == 2


def test_their_lifetime_is_checked(archiving: Settings) -> None:
    short = archiving.model_copy(update={"artifact_references_ttl": timedelta(hours=1)})
    with pytest.raises(ConfigError, match="artifact_references_ttl: an archive needs 2 hours"):
        open_archive(short)
