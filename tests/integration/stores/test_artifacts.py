"""Artifacts: the contract of agent hosts, scopes, limits, streams."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import PurePath
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import (
    BackendUnavailable,
    CorruptState,
    InvalidField,
    OutcomeUnknown,
    RedisStateStore,
    Settings,
)
from redis_state.models import ArtifactRetentionConfig, ArtifactScope
from redis_state.primitives.blob import CHUNK_BYTES
from redis_state.scripts.primitives.blobs import BlobScripts
from redis_state.stores.artifacts import ArtifactStore
from redis_state.testing import eventually
from redis_state.transport.keys import artifact_place
from tests.support.samples import STORED_STRANGE, admin, keys_of, strange
from tests.support.servers.faults import Proxy, run_processes

ONE = ArtifactScope(tenant_id="x", user_id="u", session_id="one", trace_id="t")
TWO = ONE.model_copy(update={"session_id": "two"})


@pytest.fixture
def artifacts(store: RedisStateStore) -> ArtifactStore:
    return store.artifact_store


def keeping(store: RedisStateStore, **limits: Any) -> ArtifactStore:
    return ArtifactStore(store.base, ArtifactRetentionConfig(**limits))


async def test_what_is_put_is_there_until_it_is_deleted(
    store: RedisStateStore, artifacts: ArtifactStore
) -> None:
    ref = await artifacts.put_bytes(
        b"\x00\xff", mime_type="a/b", filename="f", namespace="my tool!", scope=ONE, meta={"m": 1}
    )
    assert ref.id.startswith("my_tool_")
    assert (ref.size_bytes, ref.mime_type, ref.filename) == (2, "a/b", "f")
    assert (ref.scope, ref.namespace, ref.source) == (ONE, "my tool!", {"m": 1})
    assert await artifacts.get(ref.id) == b"\x00\xff"
    assert await artifacts.get_ref(ref.id) == ref
    assert await artifacts.exists(ref.id)
    assert await artifacts.list() == [ref]
    assert await artifacts.delete(ref.id)
    assert not await artifacts.delete(ref.id)
    assert not await artifacts.exists(ref.id)
    assert await artifacts.get(ref.id) is None
    assert await artifacts.get_ref(ref.id) is None
    assert [chunk async for chunk in artifacts.open_read(ref.id)] == []
    assert await artifacts.list() == []
    assert await keys_of(store) == []


async def test_text_may_be_anything_and_nothing(artifacts: ArtifactStore) -> None:
    for text in ("", "é", "\ud800", "x" * (CHUNK_BYTES + 1)):
        ref = await artifacts.put_text(text)
        data = await artifacts.get(ref.id)
        assert data is not None
        assert data.decode("utf-8", "surrogatepass") == text
        assert ref.mime_type == "text/plain"
        assert ref.id.startswith("art_")
    wrong: Any = b"bytes"
    with pytest.raises(InvalidField, match="text"):
        await artifacts.put_text(wrong)
    wrong = "text"
    with pytest.raises(InvalidField, match="data"):
        await artifacts.put_bytes(wrong)


async def test_the_same_bytes_again_are_the_same_artifact(artifacts: ArtifactStore) -> None:
    first = await artifacts.put_text("a", filename="first", scope=ONE)
    assert await artifacts.put_text("a", filename="second", scope=ONE) == first
    other = ONE.model_copy(update={"user_id": "v"})
    assert (await artifacts.put_text("a", scope=other)).id != first.id


async def test_the_same_bytes_in_two_sessions_are_two_artifacts(artifacts: ArtifactStore) -> None:
    one, two = [await artifacts.put_text("a", scope=scope) for scope in (ONE, TWO)]
    assert one.id != two.id
    assert await artifacts.delete(two.id)
    assert await artifacts.get(one.id) == b"a"
    assert await artifacts.get_with_session_check(one.id, "one") == b"a"
    assert await artifacts.get_with_session_check(one.id, "two") is None
    assert await artifacts.get_with_session_check("other", "two") is None


async def test_a_list_is_filtered_by_what_is_asked(artifacts: ArtifactStore) -> None:
    one, two = [await artifacts.put_text("a", scope=scope) for scope in (ONE, TWO)]
    none = await artifacts.put_text("a")
    part = await artifacts.put_text("a", scope=ArtifactScope(tenant_id="x"))

    async def ids(**fields: str) -> set[str]:
        return {ref.id for ref in await artifacts.list(scope=ArtifactScope(**fields))}

    assert {ref.id for ref in await artifacts.list()} == {one.id, two.id, none.id, part.id}
    assert await ids() == {one.id, two.id, none.id, part.id}
    assert await ids(session_id="one") == {one.id}
    assert await ids(session_id="never") == set()
    assert await ids(tenant_id="x") == {one.id, two.id, part.id}
    assert await ids(trace_id="t", session_id="two") == {two.id}
    assert await ids(user_id="") == set()


@pytest.mark.parametrize("strange_id", ["", "a{b}:*?[c]\r\n\x00", "\ud800", "art_x", "a" * 9999])
async def test_any_text_may_be_asked_for(artifacts: ArtifactStore, strange_id: str) -> None:
    assert await artifacts.get(strange_id) is None
    assert await artifacts.get_ref(strange_id) is None
    assert not await artifacts.exists(strange_id)
    assert not await artifacts.delete(strange_id)


async def test_an_id_that_is_no_text_is_refused(artifacts: ArtifactStore) -> None:
    wrong: Any = None
    with pytest.raises(InvalidField, match="artifact_id"):
        await artifacts.get(wrong)


async def test_a_session_of_two_halves_of_a_pair_lists_what_it_has(
    artifacts: ArtifactStore,
) -> None:
    """Written as JSON they are one character."""
    for field in ("session_id", "trace_id"):
        scope = ArtifactScope(**{field: "\ud83d\ude00"})
        ref = await artifacts.put_bytes(field.encode(), scope=scope)
        assert [found.id for found in await artifacts.list(scope=scope)] == [ref.id]


async def test_scopes_and_meta_may_be_anything(artifacts: ArtifactStore) -> None:
    scope = ArtifactScope(tenant_id="\ud800", session_id="a{b}:*", trace_id="\x00")
    ref = await artifacts.put_text("a", scope=scope, namespace="__", meta=strange())
    assert ref.id.startswith("art_")
    assert {**ref.source, "itself": 0} == {**STORED_STRANGE, "itself": 0}
    assert ref.scope == scope
    assert await artifacts.list(scope=scope) == [ref]


async def test_every_key_lives_as_long_as_the_retention_says(store: RedisStateStore) -> None:
    await keeping(store, ttl_seconds=100).put_text("a", scope=ONE)
    names = await keys_of(store)
    assert {name.rpartition(":")[2] for name in names} >= {"expiry", "use", "about"}
    assert len(names) == 5
    for name in names:
        assert 90_000 < await admin(store, "PTTL", name) <= 100_001


@pytest.mark.parametrize("ttl_seconds", [0, -1])
async def test_what_is_kept_for_ever_goes_without_a_trace(
    store: RedisStateStore, ttl_seconds: int
) -> None:
    artifacts = keeping(store, ttl_seconds=ttl_seconds)
    refs = [await artifacts.put_text(text, scope=ONE) for text in "abc"]
    await artifacts.put_text("d", scope=TWO)
    assert {await admin(store, "PTTL", name) for name in await keys_of(store)} == {-1}
    for ref in refs:
        assert await artifacts.delete(ref.id)
    assert len(await artifacts.list()) == 1
    await store.clear_session("two")
    assert await keys_of(store) == []


async def test_an_artifact_expires_and_may_come_again(store: RedisStateStore) -> None:
    artifacts = keeping(store, ttl_seconds=1)
    ref = await artifacts.put_text("a", scope=ONE)

    async def gone() -> bool:
        return not await artifacts.exists(ref.id)

    await eventually(gone, "the artifact expires")
    assert await artifacts.list() == []
    assert (await artifacts.put_text("a", filename="new", scope=ONE)).filename == "new"
    assert await artifacts.get(ref.id) == b"a"


async def test_a_session_keeps_what_was_used_last(store: RedisStateStore) -> None:
    for strategy, kept in [("lru", {"a", "c"}), ("fifo", {"b", "c"}), ("none", {"a", "b", "c"})]:
        artifacts = keeping(store, max_artifacts_per_session=2, cleanup_strategy=strategy)
        scope = ArtifactScope(session_id=strategy)
        a = await artifacts.put_text("a", scope=scope)
        await artifacts.put_text("b", scope=scope)
        assert await artifacts.get(a.id) == b"a"
        await artifacts.put_text("c", scope=scope)
        found = [await artifacts.get(ref.id) for ref in await artifacts.list(scope=scope)]
        assert set(found) == {text.encode() for text in kept}


async def test_what_is_too_large_is_refused_before_anything_is_sent(
    store: RedisStateStore,
) -> None:
    for limit in ("max_artifact_bytes", "max_session_bytes", "max_trace_bytes"):
        artifacts = keeping(store, **{limit: 10})
        with pytest.raises(ValueError, match=r"\(11 bytes\) exceeds limit"):
            await artifacts.put_bytes(b"x" * 11, scope=ONE)
    assert store.transport.sender.batches == 0
    assert await keys_of(store) == []


async def test_a_stream_that_breaks_off_leaves_nothing(store: RedisStateStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (2 * CHUNK_BYTES + 1)
        uploads = await keys_of(store)
        assert [":upload:" in name for name in uploads] == [True]
        assert 0 < await admin(store, "PTTL", uploads[0]) <= 15 * 60_000
        raise EOFError

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * CHUNK_BYTES

    with pytest.raises(EOFError):
        await store.artifact_store.put_stream(broken(), scope=ONE)
    with pytest.raises(ValueError, match="exceeds limit"):
        await keeping(store, max_artifact_bytes=3 * CHUNK_BYTES).put_stream(endless())
    assert await keys_of(store) == []


async def test_an_artifact_that_goes_while_it_is_read_is_not_there(
    store: RedisStateStore, artifacts: ArtifactStore
) -> None:
    ref = await artifacts.put_bytes(b"x" * (3 * CHUNK_BYTES), scope=ONE)
    blobs = store.base.keys.artifacts(ref.id[-16:])
    await admin(store, "HDEL", blobs.blob(ref.id), "2")
    assert await artifacts.get(ref.id) is None


async def test_a_reference_that_cannot_be_read_is_set_aside(
    store: RedisStateStore, artifacts: ArtifactStore
) -> None:
    ref = await artifacts.put_text("a", scope=ONE)
    blobs = store.base.keys.artifacts(ref.id[-16:])
    await admin(store, "HSET", blobs.blob(ref.id), "ref", "garbage")
    assert await artifacts.get_ref(ref.id) is None
    assert await artifacts.list() == []
    assert await artifacts.get(ref.id) == b"a"
    with pytest.raises(CorruptState):
        await artifacts.put_text("a", scope=ONE)
    assert (await store.health()).unreadable_rows == 1


async def test_deleting_the_last_and_storing_at_once_loses_no_session(
    artifacts: ArtifactStore,
) -> None:
    for number in range(30):
        old = await artifacts.put_text("old", scope=ONE)
        _, new = await asyncio.gather(
            artifacts.delete(old.id), artifacts.put_text(f"new {number}", scope=ONE)
        )
        assert await artifacts.list() == [new]
        await artifacts.delete(new.id)
        assert await artifacts.list() == []


async def test_of_4_processes_none_gets_over_the_limits(
    store: RedisStateStore, settings: Settings
) -> None:
    limits = {"max_artifacts_per_session": 7, "max_trace_bytes": 500}
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [
        {**shared, "does": "put", "name": str(name), "times": 50, "retention": limits}
        for name in range(4)
    ]
    done = asyncio.Event()
    about = store.base.keys.artifacts(artifact_place("s")).about

    async def watch() -> int:
        looked = 0
        while not done.is_set():
            for total in await admin(store, "HMGET", about, ":", ":t"):
                count, size = map(int, (total or b"0 0").split())
                assert count <= 5
                assert size <= 500
            looked += 1
        return looked

    watching = asyncio.create_task(watch())
    ids = [one for ran in await run_processes("use_artifacts", arguments) for one in ran]
    done.set()
    assert await watching > 10
    assert len(set(ids)) == 200
    assert len(await store.artifact_store.list()) == 5


async def test_of_4_processes_with_16_callers_all_get_one_artifact(
    store: RedisStateStore, settings: Settings
) -> None:
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    arguments = [{**shared, "does": "same", "callers": 16}] * 4
    ran = await run_processes("use_artifacts", arguments)
    assert len({one for ids in ran for one in ids}) == 1
    assert len(await store.artifact_store.list()) == 1
    assert not [name for name in await keys_of(store) if ":upload:" in name]


@pytest.mark.slow
@pytest.mark.parametrize("size", [64_000_000, pytest.param(512_000_000, marks=pytest.mark.full)])
async def test_large_artifacts_go_through_a_process_that_hardly_grows(
    settings: Settings, size: int
) -> None:
    shared = {"url": settings.url.get_secret_value(), "namespace": settings.namespace}
    limits = dict.fromkeys(("max_artifact_bytes", "max_session_bytes", "max_trace_bytes"), size)
    argument = {**shared, "does": "stream", "bytes": size, "retention": limits}
    [ran] = await run_processes("use_artifacts", [argument])
    assert ran["size"] == size
    assert ran["grown"] < 16 * 1024, ran


async def test_the_published_package_finds_its_artifact_store(store: RedisStateStore) -> None:
    theirs = pytest.importorskip("penguiflow.artifacts", reason="needs the published package")
    found: Any = theirs.discover_artifact_store(store)
    assert found is store.artifact_store
    assert isinstance(found, theirs.ArtifactStore)
    scoped = theirs.ScopedArtifacts(
        found, tenant_id="x", user_id="u", session_id="one", trace_id="t"
    )
    ref = await scoped.upload("text")
    assert await scoped.download(ref.id) == b"text"
    other = theirs.ScopedArtifacts(
        found, tenant_id="x", user_id="u", session_id="two", trace_id="t"
    )
    assert await other.download(ref.id) is None
    assert await scoped.delete(ref.id)


@pytest.mark.parametrize("field", ["mime_type", "filename", "namespace"])
async def test_a_reference_that_nobody_could_read_is_refused(
    artifacts: ArtifactStore, field: str
) -> None:
    wrong: Any = {field: 5}
    with pytest.raises(InvalidField, match=field):
        await artifacts.put_bytes(b"a", **wrong)
    path: Any = PurePath("a.txt")
    ref = await artifacts.put_bytes(b"a", filename=path)
    assert ref.filename == "a.txt"


async def test_no_lifetime_is_too_long(store: RedisStateStore) -> None:
    ref = await keeping(store, ttl_seconds=sys.maxsize).put_text("a", scope=ONE)
    assert await store.artifact_store.get(ref.id) == b"a"
    for name in await keys_of(store):
        assert await admin(store, "PTTL", name) > 0


async def test_an_artifact_whose_writer_died_behind_the_commit_is_listed(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = BlobScripts.commit_blob
    died: list[str] = []

    async def commit_and_die(scripts: Any, *keys: Any, **given: Any) -> Any:
        await real(scripts, *keys, **given)
        died.append(given["blob_id"])
        raise asyncio.CancelledError

    monkeypatch.setattr(BlobScripts, "commit_blob", commit_and_die)
    with pytest.raises(asyncio.CancelledError):
        await store.artifact_store.put_text("kept", scope=ONE)
    monkeypatch.undo()
    assert [ref.id for ref in await store.artifact_store.list()] == died != []


async def test_an_artifact_that_cannot_be_listed_behind_the_commit_is_an_unknown_outcome(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = BlobScripts.commit_blob
    async with Proxy(settings.url.get_secret_value()) as proxy:

        async def commit_and_part(scripts: Any, *keys: Any, **given: Any) -> Any:
            reply = await real(scripts, *keys, **given)
            proxy.refuse()
            proxy.cut()
            return reply

        monkeypatch.setattr(BlobScripts, "commit_blob", commit_and_part)
        changed: dict[str, Any] = {"url": SecretStr(proxy.url), "call_timeout_s": 1.0}
        async with RedisStateStore(settings.model_copy(update=changed)) as far:
            with pytest.raises(OutcomeUnknown, match="written, then: "):
                await far.artifact_store.put_text("kept", scope=ONE)
            assert proxy.refused
    async with RedisStateStore(settings) as near:
        [ref] = await near.artifact_store.list()
        assert await near.artifact_store.get(ref.id) == b"kept"


async def test_a_session_whose_writer_died_before_the_commit_is_cleared(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str] = []

    async def die(_: Any, *__: Any, **given: Any) -> Any:
        died.append(given["blob_id"])
        raise asyncio.CancelledError

    monkeypatch.setattr(BlobScripts, "commit_blob", die)
    with pytest.raises(asyncio.CancelledError):
        await store.artifact_store.put_text("lost", scope=ONE)
    monkeypatch.undo()
    index = store.base.keys.artifact_sessions()
    assert len(died) == len(await admin(store, "ZRANGE", index, 0, -1)) == 1
    await store.artifact_store.clear("one")
    assert await admin(store, "ZRANGE", index, 0, -1) == []


async def test_a_chunk_on_its_way_is_dropped_if_its_place_cannot_be_listed(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster another server has the index."""
    refused: list[str] = []

    async def refuse(_: Any, key: str, **__: Any) -> Any:
        refused.append(key)
        raise BackendUnavailable("index", "its server is away")

    monkeypatch.setattr(type(store.base.scripts), "add_member", refuse)
    with pytest.raises(BackendUnavailable, match="its server is away"):
        await store.artifact_store.put_text("lost", scope=ONE)
    assert refused == [store.base.keys.artifact_sessions()]

    async def is_gone() -> bool:
        return not await keys_of(store)

    # By the same connection as the chunk, so it is behind it.
    same_slot = store.base.keys.artifacts(artifact_place("one")).blob("any")
    await store.transport.commands.exists(same_slot)
    await eventually(is_gone, "what was sent is dropped")
