"""Compare-and-set when the server's history goes back: a version's number alone proves nothing."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from redis_state import InvalidField, LostRace, RedisStateStore, VersionConflict
from redis_state.models import Version
from redis_state.primitives.record import new_write_id
from redis_state.scripts import ReplyCode
from redis_state.stores.a2a.task_model import A2ALimits, Draft, Phase, Ref, Rule, VersionStamp
from redis_state.stores.a2a.tasks import A2ATasks
from tests.support.memory import memory_of, names_in, stored, turn
from tests.support.samples import task
from tests.support.servers.changes.rollback import Rollback, rolling_back

REF = Ref("scope", "t")


@pytest.fixture
async def server() -> AsyncIterator[Rollback]:
    async with rolling_back() as started:
        yield started


@pytest.fixture
async def store(server: Rollback) -> AsyncIterator[RedisStateStore]:
    async with RedisStateStore.from_url(server.url) as opened:
        yield opened


@dataclass
class Document:
    """A document that is saved by compare-and-set: as any of its readers sees it."""

    load: Callable[[], Awaitable[tuple[int, Any]]]
    save: Callable[[int, Any], Awaitable[Any]]


def memory(store: RedisStateStore) -> Document:
    async def load() -> tuple[int, Any]:
        found = await store.load_memory("m")
        assert found is not None
        return found[0]["n"], found[1]

    async def save(n: int, expected: Any) -> Any:
        return await store.memory.save("m", {"n": n}, expected_version=expected)

    return Document(load, save)


def context(store: RedisStateStore) -> Document:
    async def load() -> tuple[int, Any]:
        found = await store.contexts.load("s")
        assert found is not None
        return found.llm_context["n"], found.version

    async def save(n: int, expected: Any) -> Any:
        given = {"n": n}
        saved = await store.contexts.update_context(
            "s", llm_context=given, expected_version=expected
        )
        return saved[0]

    return Document(load, save)


def a2a_task(store: RedisStateStore) -> Document:
    tasks = A2ATasks(store.base, A2ALimits(3_600_000, 3_600_000, 1000, lease_ms=15_000))

    async def load() -> tuple[int, Any]:
        found = await tasks.read(REF)
        assert found is not None
        return int(found.body), found.version

    async def save(n: int, expected: Any) -> Any:
        draft = Draft("2", Phase.OPEN, event=b"event", fields={"body": b"%d" % n})
        rule = Rule.at(expected or VersionStamp(0, 0))
        written = await tasks.write(REF, draft, rule, write=new_write_id(), owner="me")
        assert written is not None
        return written.version

    return Document(load, save)


def priority(store: RedisStateStore) -> Document:
    keys = store.tasks.keys("session", "task")

    async def load() -> tuple[int, Any]:
        found = await store.tasks.load_fields("session", "task")
        assert found is not None
        return int(found.fields["priority"]), found.version

    async def save(n: int, expected: Any) -> Any:
        if expected == 0:
            await store.save_task(task(priority=n))
            return None
        reply = await store.base.scripts.prioritize_task(
            keys, priority=n, write=new_write_id(), expected=expected
        )
        if reply.word is ReplyCode.STALE:
            raise VersionConflict("task", expected=expected, actual=reply.version)
        return (await load())[1]

    return Document(load, save)


def key_value(store: RedisStateStore) -> Document:
    names = ("tenant_id", "user_id", "session_id", "task_id", "trace_id")
    kv = store.kv.bind(dict.fromkeys(names, "x"))

    async def load() -> tuple[int, Any]:
        found = await kv.get_entry("k")
        assert found is not None
        return found.value, found.etag

    async def save(n: int, expected: Any) -> Any:
        return (await kv.set("k", n, expected_etag=expected or "")).etag

    return Document(load, save)


KINDS = [memory, context, a2a_task, priority, key_value]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("read", [False, True], ids=["as saved", "as read"])
async def test_a_save_over_a_version_of_the_lost_history_is_refused(
    server: Rollback,
    store: RedisStateStore,
    kind: Callable[[RedisStateStore], Document],
    others: int,
    read: bool,  # noqa: FBT001
) -> None:
    document = kind(store)
    await document.save(1, 0)
    _, first = await document.load()
    await server.mark()
    lost = await document.save(2, first)
    if read:
        _, lost = await document.load()
    await server.go_back()
    for other in range(others):
        _, known = await document.load()
        await document.save(10 + other, known)
    there = await document.load()
    with pytest.raises(LostRace):
        await document.save(3, lost)
    assert await document.load() == there
    await document.save(4, there[1])
    assert (await document.load())[0] == 4


@pytest.mark.parametrize("kind", [memory, context])
async def test_a_save_over_a_version_of_a_deleted_document_is_refused(
    store: RedisStateStore, kind: Callable[[RedisStateStore], Document]
) -> None:
    document = kind(store)
    old = await document.save(1, 0)
    await store.memory.delete("m")
    await store.contexts.clear("s")
    await document.save(2, 0)
    with pytest.raises(VersionConflict) as caught:
        await document.save(3, old)
    assert (caught.value.expected, int(caught.value.actual)) == (old, 1)
    assert "at version 1, which another write made since" in str(caught.value)
    assert (await document.load())[0] == 2


async def test_a_memory_loses_no_turn_of_another_process_when_the_server_went_back(
    server: Rollback, store: RedisStateStore
) -> None:
    async with RedisStateStore.from_url(server.url) as other:
        ours, theirs = memory_of(store), memory_of(other)
        await ours.add_turn(turn("before"))
        await theirs.hydrate()
        await server.mark()
        await ours.add_turn(turn("lost"))
        await server.go_back()
        await theirs.add_turn(turn("theirs"))
        await ours.add_turn(turn("ours"))
        assert names_in(await stored(store)) == ["before", "theirs", "ours"]


async def test_a_plain_number_is_compared_as_the_number_alone(
    server: Rollback, store: RedisStateStore
) -> None:
    document = memory(store)
    await document.save(1, 0)
    await server.mark()
    lost = await document.save(2, 1)
    await server.go_back()
    await document.save(10, 1)
    assert await document.save(3, int(lost)) == 3


@pytest.mark.parametrize("expected", [-1, True, "1", 1.0])
@pytest.mark.parametrize("kind", [memory, context])
async def test_what_is_no_version_is_refused_by_name(
    store: RedisStateStore, kind: Callable[[RedisStateStore], Document], expected: Any
) -> None:
    with pytest.raises(InvalidField) as caught:
        await kind(store).save(1, expected)
    assert caught.value.field == "expected_version"


def test_a_version_is_its_number_to_everybody_but_another_version() -> None:
    version = Version(2, "w")
    assert version == 2 == version
    assert (version + 1, str(version), f"{version:d}") == (3, "2", "2")
    assert version == Version(2, "w")
    assert version != Version(2, "x")
    assert version != Version(3, "w")
    assert version != "2"
    assert hash(version) == hash(2)
    pickled = pickle.loads(pickle.dumps(version))  # noqa: S301 - our own
    kept = json.loads(json.dumps([version, version.write]))
    for same in (Version(*kept), copy.deepcopy(version), pickled):
        assert (same, same.write) == (version, "w")
