"""Artifacts as hosts use them, with both sets of classes.

| trap | test |
| --- | --- |
| the same bytes in two sessions, of two users, in two namespaces | `..._of_the_same_content...` |
| over-size is a ValueError before anything is sent | `..._over_size...` |
| ``ttl_seconds <= 0`` keeps; ``none`` neither evicts nor refuses | `..._kept...`, `..._none...` |
| `fifo` is not `lru`; limits of a trace hold | `..._fifo...`, `..._trace...` |
| a filter's None is a wildcard; without a scope nothing but None matches | `..._filter...` |
| large values of ``ctx.kv`` must not be gone before the entry that names them | `..._kv...` |
| a session's bytes are given to that session only | `..._session_check...` |
"""

from __future__ import annotations

from typing import Any

import pytest

from redis_state import Settings
from tests.support.hosts import KINDS, Host, open_host
from tests.support.samples import admin, keys_of

NAMES = pytest.mark.parametrize("name", KINDS)


def scope(host: Host, session: str | None = "one", **more: Any) -> Any:
    fields: dict[str, Any] = {"tenant_id": "x", "user_id": "u", "trace_id": "t"}
    return host.types.ArtifactScope(session_id=session, **{**fields, **more})


async def test_artifacts_of_the_same_content_are_one_for_each_owner(host: Host) -> None:
    artifacts = host.store.artifact_store
    scopes = [scope(host), scope(host, "two"), scope(host, user_id="v"), None]
    refs = [await artifacts.put_bytes(b"same", scope=each) for each in scopes]
    again = [await artifacts.put_bytes(b"same", scope=each) for each in scopes]
    named = await artifacts.put_bytes(b"same", scope=scopes[0], namespace="tool")
    assert [each.id for each in again] == [each.id for each in refs]
    assert len({each.id for each in [*refs, named]}) == 5
    assert await artifacts.delete(refs[0].id)
    for each in [*refs[1:], named]:
        assert await artifacts.get(each.id) == b"same"
        assert await artifacts.get_ref(each.id) == each
    for session, user in (("one", "v"), ("two", "u")):
        wanted = host.types.ArtifactScope(session_id=session, user_id=user)
        found = await artifacts.list(scope=wanted)
        assert refs[1 if session == "two" else 2] in found


@NAMES
async def test_over_size_is_a_value_error_before_anything_is_sent(
    settings: Settings, name: str
) -> None:
    limits = {"max_artifact_bytes": 10}
    async with open_host(name, settings, artifact_retention=limits) as host:
        artifacts = host.store.artifact_store
        with pytest.raises(ValueError, match="11 bytes"):
            await artifacts.put_bytes(b"x" * 11)
        with pytest.raises(ValueError, match="exceeds limit"):
            await artifacts.put_text("é" * 6)
        assert host.store.transport.sender.batches == 0
        assert await artifacts.put_bytes(b"x" * 10)


@NAMES
@pytest.mark.parametrize("ttl_seconds", [0, -1])
async def test_what_has_no_time_to_live_is_kept(
    settings: Settings, name: str, ttl_seconds: int
) -> None:
    async with open_host(name, settings, artifact_retention={"ttl_seconds": ttl_seconds}) as host:
        ref = await host.store.artifact_store.put_bytes(b"x", scope=scope(host))
        lives = [await admin(host.store, "PTTL", key) for key in await keys_of(host.store)]
        assert set(lives) == {-1}
        assert await host.store.artifact_store.delete(ref.id)


@NAMES
@pytest.mark.parametrize(("strategy", "kept"), [("fifo", "bcd"), ("lru", "acd"), ("none", "abcd")])
async def test_fifo_lru_and_none_are_what_they_say(
    settings: Settings, name: str, strategy: str, kept: str
) -> None:
    limits = {"max_artifacts_per_session": 3, "cleanup_strategy": strategy}
    async with open_host(name, settings, artifact_retention=limits) as host:
        artifacts = host.store.artifact_store
        refs = [await artifacts.put_text(text, scope=scope(host)) for text in "abc"]
        assert await artifacts.get(refs[0].id) == b"a"
        await artifacts.put_text("d", scope=scope(host))
        found = [await artifacts.get(each.id) for each in await artifacts.list()]
        assert sorted(found) == [text.encode() for text in kept]


@NAMES
async def test_limits_of_a_trace_hold_within_a_session(settings: Settings, name: str) -> None:
    limits = {"max_artifacts_per_trace": 2}
    async with open_host(name, settings, artifact_retention=limits) as host:
        artifacts = host.store.artifact_store
        for trace_id in ("t", "other"):
            for text in "abc":
                await artifacts.put_text(trace_id + text, scope=scope(host, trace_id=trace_id))
        found = [await artifacts.get(each.id) for each in await artifacts.list()]
        assert sorted(found) == [b"otherb", b"otherc", b"tb", b"tc"]


async def test_a_filters_none_is_a_wildcard_and_no_scope_matches_only_it(host: Host) -> None:
    artifacts = host.store.artifact_store
    mine = await artifacts.put_text("mine", scope=scope(host))
    nobodys = await artifacts.put_text("nobody's")
    anybody = host.types.ArtifactScope()
    for wanted in (None, anybody):
        assert {each.id for each in await artifacts.list(scope=wanted)} == {mine.id, nobodys.id}
    for wanted in ({"tenant_id": "x"}, {"trace_id": "t"}, {"session_id": "one", "user_id": "u"}):
        assert await artifacts.list(scope=host.types.ArtifactScope(**wanted)) == [mine]
    assert await artifacts.list(scope=scope(host, user_id="v")) == []


async def test_the_session_check_gives_bytes_to_their_session_only(host: Host) -> None:
    artifacts = host.store.artifact_store
    ref = await artifacts.put_bytes(b"", scope=scope(host))
    assert await artifacts.get_with_session_check(ref.id, "one") == b""
    assert await artifacts.get_with_session_check(ref.id, "two") is None


async def test_a_large_value_of_kv_lives_as_long_as_the_memory_that_names_it(host: Host) -> None:
    store, artifacts = host.store, host.store.artifact_store
    short = await artifacts.put_bytes(b"short", scope=scope(host))
    long = await artifacts.put_bytes(b"long", scope=scope(host), namespace="session_kv")
    await store.save_memory_state("kv:v1:x", {"value": {"artifact_ref": long.id}})
    keys = await keys_of(store)
    lives = {key: await admin(store, "PTTL", key) for key in keys}

    def life(part: str) -> int:
        (found,) = [lives[key] for key in keys if part in key]
        return int(found)

    an_hour, a_minute = 3_600_000, 60_000
    assert life(short.id) <= an_hour
    assert life(long.id) > life(":memory") - a_minute
    assert life("artifact-sessions") > life(":memory") - a_minute
