"""RedisSaver reads and lists checkpoints of any ids, and refuses what is none by name."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from redis_state import (
    ConfigError,
    CorruptState,
    InvalidField,
    RedisStateStore,
    Settings,
)
from redis_state.integrations.langgraph import RedisSaver, RedisStore
from redis_state.integrations.langgraph.threads.listings import Listings
from redis_state.integrations.langgraph.threads.stored.places import value_name
from redis_state.integrations.langgraph.threads.stored.rows import Rows
from redis_state.transport.keys import GRAPH_SHARDS
from tests.support.agents.checkpoints import listed, put
from tests.support.agents.graphs import config_of, counting
from tests.support.servers.sets.nodes import sent_so_far

ODD = [
    "",
    " ",
    "a:b",
    "a/b",
    "%",
    "%25",
    "{a}",
    "}{",
    "\0",
    "a\0b",
    "\U0001f642" * 300,
    "ä\ud800",
    "*?[x]",
    "x" * 300,
    "x" * 301,
    "x" * 500,
]


async def test_no_two_ids_meet(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    for thread in ODD:
        for namespace in ODD:
            await put(saver, thread, namespace, at=[ODD.index(thread), ODD.index(namespace)])
    for thread in ODD:
        for namespace in ODD:
            config = config_of(thread, checkpoint_ns=namespace)
            (found,) = await listed(saver, config)
            at = [ODD.index(thread), ODD.index(namespace)]
            assert found.checkpoint["channel_values"]["at"] == at
            assert found.config["configurable"]["checkpoint_ns"] == namespace
        assert len(await listed(saver, config_of(thread))) == len(ODD)
    everywhere = await listed(saver, None)
    assert {found.config["configurable"]["thread_id"] for found in everywhere} == set(ODD)
    await saver.adelete_thread("")
    assert len(await listed(saver, None)) == (len(ODD) - 1) * len(ODD)


async def test_an_id_of_a_checkpoint_may_have_colons(store: RedisStateStore) -> None:
    saver, ids = RedisSaver(store), ["a", "a:", "a:b", ":", "::"]
    for namespace in ("", "a:"):
        for step, id_ in enumerate(ids):
            checkpoint = empty_checkpoint()
            checkpoint["id"] = id_
            config = config_of("t", checkpoint_ns=namespace)
            await saver.aput(config, checkpoint, {"step": step}, {})
        for step, id_ in enumerate(ids):
            config = config_of("t", checkpoint_ns=namespace, checkpoint_id=id_)
            found, about = await saver.aget_tuple(config), await saver._checkpoints.about(config)
            assert found is not None
            assert about is not None
            assert (found.checkpoint["id"], found.metadata.get("step")) == (id_, step)
            assert (about.id, about.metadata["step"]) == (id_, step)
        newest = await saver.aget_tuple(config_of("t", checkpoint_ns=namespace))
        assert newest is not None
        assert newest.checkpoint["id"] == "a:b"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "configurable"),
        ({"configurable": {}}, "configurable.thread_id"),
        (config_of(3.5), "configurable.thread_id"),  # type: ignore[arg-type]
        (config_of("t", checkpoint_ns=1), "configurable.checkpoint_ns"),
        (config_of("t", checkpoint_id="a b"), "configurable.checkpoint_id"),
        (config_of("t", checkpoint_id="x" * 201), "configurable.checkpoint_id"),
    ],
)
async def test_a_bad_config_is_refused_by_name(
    store: RedisStateStore, config: Any, field: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        await RedisSaver(store).aget_tuple(config)
    assert refused.value.field == field


async def test_other_bad_input_is_refused_by_name(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    with pytest.raises(InvalidField, match="strategy"):
        await saver.aprune(["t"], strategy="some")
    with pytest.raises(InvalidField, match="thread_ids"):
        await saver.aprune("t")
    with pytest.raises(InvalidField, match="checkpoint_id"):
        await saver.aput_writes(config_of("t"), [("a", 1)], "task")
    with pytest.raises(InvalidField, match="limit"):
        await listed(saver, None, limit=-1)
    with pytest.raises(InvalidField, match="channel_versions"):
        value_name("a\ud800", 1)
    config = {**config_of("t"), "metadata": {"run_id": "\ud800"}}
    with pytest.raises(InvalidField, match=r"metadata\.run_id"):
        await counting(saver).ainvoke({"log": []}, config)
    with pytest.raises(InvalidField, match=r"configurable\.checkpoint_ns"):
        await put(saver, "t", "n" * 300 + "\ud800", n=1)
    with pytest.raises(InvalidField, match="lease_s"):
        saver.claim("t", lease_s=0)
    with pytest.raises(ConfigError, match="lifetime"):
        RedisSaver(store, lifetime=timedelta(0))


async def test_all_threads_are_listed_page_by_page(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    threads = [f"t{number:03}" for number in range(250)]
    await asyncio.gather(*(put(saver, thread, n=1) for thread in threads))
    await put(saver, "t003", n=2)
    found: list[str] = []
    before = None
    while page := await listed(saver, None, before=before, limit=20):
        found += [each.config["configurable"]["thread_id"] for each in page]
        before = page[-1].config
    assert found == sorted([*threads, "t003"])


async def test_a_page_costs_the_page(store: RedisStateStore) -> None:
    saver, items = RedisSaver(store), RedisStore(store)
    names = [f"t{number:02}" for number in range(40)]
    await asyncio.gather(*(put(saver, name, n=1) for name in names))
    await asyncio.gather(*(items.aput(("a",), name, {"n": 1}) for name in names))

    async def costs() -> list[int]:
        found: list[int] = []
        before = None
        for wanted in (names[:20], names[20:]):
            since = await sent_so_far(store.transport)
            page = await listed(saver, None, before=before, limit=20)
            found += _between(since, await sent_so_far(store.transport))
            assert [each.config["configurable"]["thread_id"] for each in page] == wanted
            before = page[-1].config
        since = await sent_so_far(store.transport)
        best = await items.asearch(("a",), limit=10)
        assert [item.key for item in best] == names[:10]
        return [*found, *_between(since, await sent_so_far(store.transport))]

    await _list_others(saver, items, 400)
    few = await costs()
    await _list_others(saver, items, 1_500)
    grown = await costs()
    for one, other in zip(few, grown, strict=True):
        assert other <= 1.2 * one, (few, grown)


def _between(since: tuple[int, int], until: tuple[int, int]) -> list[int]:
    """Return the commands and the bytes of a call."""
    return [after - before for before, after in zip(since, until, strict=True)]


async def _list_others(saver: RedisSaver, items: RedisStore, many: int) -> None:
    """List threads and items behind the real ones, which only the listings know."""
    calls = list[Awaitable[None]]()
    for number in range(many):
        name, space = f"z{number:05}".encode(), b"b%d" % (number % 100)
        shard = zlib.crc32(name) % GRAPH_SHARDS
        calls += (
            saver._threads._listing.enter(shard, name, ttl_ms=60_000),
            items._listing.enter(shard, space + b"\0\0" + name, ttl_ms=60_000),
        )
    await asyncio.gather(*calls)


async def test_namespaces_are_merged_by_age(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    made = [await put(saver, "t", "ab c"[number % 4], n=number) for number in range(40)]
    ids = [each["configurable"]["checkpoint_id"] for each in made]
    found = await listed(saver, config_of("t"))
    assert [each.checkpoint["id"] for each in found] == ids[::-1]
    part = await listed(saver, config_of("t"), before=made[20], limit=5)
    assert [each.checkpoint["id"] for each in part] == ids[19:14:-1]
    one = await listed(saver, config_of("t", checkpoint_id=ids[7]))
    assert [each.checkpoint["channel_values"] for each in one] == [{"n": 7}]


async def test_a_thread_that_another_process_deletes_is_listed_again(
    store: RedisStateStore, settings: Settings
) -> None:
    async with RedisStateStore(settings) as second:
        one, other = RedisSaver(store), RedisSaver(second)
        await put(one, "t", n=1)
        await other.adelete_thread("t")
        assert await listed(other, None) == []
        await put(one, "t", n=2)
        (found,) = await listed(other, None)
        assert found.checkpoint["channel_values"] == {"n": 2}


async def test_large_checkpoints_come_in_several_replies(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    for number in range(6):
        await put(saver, "t", big="x" * 2_000_000, n=number)
    found = await listed(saver, config_of("t"))
    assert [each.checkpoint["channel_values"]["n"] for each in found] == [5, 4, 3, 2, 1, 0]
    assert all(len(each.checkpoint["channel_values"]["big"]) == 2_000_000 for each in found)


@pytest.mark.parametrize("unreadable", [False, True])
@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (None, None),
        (config_of("t"), None),
        (config_of("t", checkpoint_ns=""), {"step": 1}),
    ],
    ids=["all threads", "a thread", "a filter"],
)
async def test_a_listing_that_blocks_is_ended_where_it_is_left(
    store: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
    config: Any,
    wanted: dict[str, int] | None,
    *,
    unreadable: bool,
) -> None:
    kept: list[Any] = []
    pages = Listings.pages

    def keeping(*args: Any, **options: Any) -> Any:
        kept.append(pages(*args, **options))
        return kept[-1]

    def damaged(*_: Any, **__: Any) -> None:
        raise CorruptState("a checkpoint", "it is damaged")

    monkeypatch.setattr(Listings, "pages", keeping)
    for number in range(3):
        await put(RedisSaver(store), "t", n=number)
    with RedisSaver(store) as saver:
        listing: Any = saver.list(config, filter=wanted)
        next(listing)
        if unreadable:
            monkeypatch.setattr(Rows, "found_value", damaged)
            with pytest.raises(CorruptState):
                list(listing)
        else:
            listing.close()
        saver.get_tuple(config_of("another"))  # behind what the listing left to do
        assert kept[0]._source._pages.ag_frame is None
