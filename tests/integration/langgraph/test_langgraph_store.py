"""RedisStore against LangGraph's own store in memory, with lifetimes and odd names."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from cryptography.fernet import Fernet
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from pydantic import SecretStr

from redis_state import InvalidField, PayloadTooLarge, PayloadUnreadable, RedisStateStore, Settings
from redis_state.errors import OutcomeUnknown
from redis_state.integrations.langgraph import RedisStore
from redis_state.transport.keys import GRAPH_SHARDS
from tests.support.processes import children
from tests.support.processes.forkserver import ForkedProcess
from tests.support.samples import changed
from tests.support.scripts.replies import ask
from tests.support.servers.faults import start_process
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy

ODD = ["", "a:b", "%", "{a}", "\0", "\0\0", "ä\ud800", "*?[x]", "\U0001f642", "x" * 500]


def _plain(items: Any) -> list[Any]:
    return sorted((item.namespace, item.key, repr(item.value)) for item in items)


async def test_it_answers_as_langgraphs_own_store(store: RedisStateStore) -> None:
    ours, model = RedisStore(store), InMemoryStore()
    chance = random.Random(7)
    spaces = [("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("z", "b")]
    for number in range(120):
        space, key = chance.choice(spaces), f"k{chance.randrange(6)}"
        value: Any = {"n": number, "kind": chance.choice("xy"), "deep": {"m": number % 3}}
        value["list"] = [number % 2, {"m": number % 3, "more": number}]
        if chance.random() < 0.2:
            value = None
        for each in (ours, model):
            await each.abatch([PutOp(space, key, value)])
    for space in spaces:
        for key in (f"k{number}" for number in range(7)):
            found, wanted = await ours.aget(space, key), await model.aget(space, key)
            assert (found and found.value) == (wanted and wanted.value)
    filters: list[Any] = [
        None,
        {"kind": "x"},
        {"n": {"$gte": 60, "$lt": 110}},
        {"deep": {"m": 1}},
        {"kind": {"$ne": "x"}},
        {"list": [1, {"m": 2}]},
        {"list": (0, {"m": {"$gte": 1}})},
        {"list": [1]},
    ]
    for prefix in ((), ("a",), ("a", "b"), ("b",)):
        for each in filters:
            matching = await ours.asearch(prefix, filter=each, limit=100)
            assert _plain(matching) == _plain(await model.asearch(prefix, filter=each, limit=100))
            pages = [
                item
                for offset in range(0, 100, 3)
                for item in await ours.asearch(prefix, filter=each, limit=3, offset=offset)
            ]
            assert [item.key for item in pages] == [item.key for item in matching]
    live = {item.namespace for item in await ours.asearch((), limit=100)}
    options: list[Any] = [{}, {"prefix": ("a",)}, {"suffix": ("b",)}, {"prefix": ("*", "b")}]
    options += [{"max_depth": 1}, {"limit": 2, "offset": 1}]
    for option in options:
        given: Any = option
        found_spaces = await ours.alist_namespaces(**given)
        if not option:
            assert found_spaces == sorted(live)
        whole: Any = {**given, "offset": 0, "limit": 99}
        assert set(found_spaces) <= set(await model.alist_namespaces(**whole))


def test_it_works_without_a_loop(settings: Settings) -> None:
    with RedisStore(RedisStateStore(settings)) as items:
        items.put(("u",), "k", {"a": 1})
        found = items.get(("u",), "k")
        assert found is not None
        assert (found.value, found.created_at == found.updated_at) == ({"a": 1}, True)
        items.delete(("u",), "k")
        assert items.get(("u",), "k") is None
        assert items.search(("u",)) == []
        assert items.list_namespaces() == []


async def test_no_two_names_meet(store: RedisStateStore) -> None:
    items = RedisStore(store)
    labels = [label.replace("\0", "\1").replace(".", "") or "-" for label in ODD]
    for label in labels:
        for key in ODD:
            await items.aput((label, "x"), key, {"at": [labels.index(label), ODD.index(key)]})
    for label in labels:
        for key in ODD:
            found = await items.aget((label, "x"), key)
            assert found is not None
            assert found.value == {"at": [labels.index(label), ODD.index(key)]}
        assert len(await items.asearch((label,), limit=100)) == len(ODD)


async def test_reads_of_a_batch_come_before_its_puts(store: RedisStateStore) -> None:
    items = RedisStore(store)
    await items.aput(("u",), "k", {"n": 1})
    results = await items.abatch(
        [
            PutOp(("u",), "k", {"n": 2}),
            GetOp(("u",), "k"),
            PutOp(("u",), "k", {"n": 3}),
            SearchOp(("u",)),
            ListNamespacesOp(),
        ]
    )
    first: Any = results[1]
    assert first.value == {"n": 1}
    assert results[4] == [("u",)]
    last = await items.aget(("u",), "k")
    assert last is not None
    assert last.value == {"n": 3}


async def test_a_use_renews_an_items_lifetime_if_wanted(store: RedisStateStore) -> None:
    items = RedisStore(store, ttl_config={"default_ttl": 10, "refresh_on_read": False})
    await items.aput(("u",), "k", {"n": 1})
    key = store.base.keys.graph_item("u", "k")
    commands = store.base.scripts.transport.commands

    async def left_after(use: Any) -> int:
        await store.base.scripts.transport.sender.send("PEXPIRE", key, 5000, repeatable=True)
        await use
        return int(await commands.pttl(key))

    assert await left_after(items.aget(("u",), "k")) <= 5000
    assert await left_after(items.asearch(("u",))) <= 5000
    assert await left_after(items.aget(("u",), "k", refresh_ttl=True)) > 500_000
    assert await left_after(items.asearch(("u",), refresh_ttl=True)) > 500_000
    assert await left_after(items.aput(("u",), "k", {"n": 2}, ttl=20)) > 1_100_000


async def test_what_has_expired_is_neither_found_nor_listed_for_long(
    store: RedisStateStore,
) -> None:
    items = RedisStore(store)
    await items.aput(("u",), "gone", {"n": 1})
    await items.aput(("u",), "here", {"n": 2})
    await store.base.scripts.unlink(store.base.keys.graph_item("u", "gone"))
    assert [item.key for item in await items.asearch(("u",))] == ["here"]
    assert [item.key for item in await items.asearch((), limit=100)] == ["here"]


async def test_values_are_sealed(store: RedisStateStore, settings: Settings) -> None:
    keys = SecretStr(Fernet.generate_key().decode())
    async with RedisStateStore(settings.model_copy(update={"payload_keys": keys})) as sealed:
        items = RedisStore(sealed)
        await items.aput(("u",), "k", {"secret": "word"})
        stored = await store.base.scripts.transport.commands.hgetall(
            store.base.keys.graph_item("u", "k")
        )
        assert b"word" not in b"".join(stored)
        found = await items.aget(("u",), "k")
        assert found is not None
        assert found.value == {"secret": "word"}
        with pytest.raises(PayloadUnreadable):
            await RedisStore(store).aget(("u",), "k")


@pytest.mark.parametrize(
    ("op", "field"),
    [
        (SearchOp(("u",), query="what"), "query"),
        (SearchOp(("u",), filter={"a": {"$in": [1]}}), "filter"),
        (SearchOp(("u",), limit=0), "limit"),
        (ListNamespacesOp(max_depth=0), "max_depth"),
        (PutOp((), "k", {}), "namespace"),
        (PutOp(("a.b",), "k", {}), "namespace"),
        (PutOp(("a\0b",), "k", {}), "namespace"),
        (PutOp(("a",), "k", {}, ttl=0), "ttl"),
        (PutOp(("a",), "k", 5), "value"),  # type: ignore[arg-type]
        (GetOp(("a",), 5), "key"),  # type: ignore[arg-type]
    ],
)
async def test_bad_input_is_refused_by_name(store: RedisStateStore, op: Any, field: str) -> None:
    items = RedisStore(store)
    await items.aput(("u",), "k", {"a": 1})
    with pytest.raises(InvalidField) as refused:
        await items.abatch([op])
    assert refused.value.field == field


async def test_nothing_of_a_batch_is_put_if_one_of_it_is_refused(
    store: RedisStateStore, settings: Settings
) -> None:
    fine, large = PutOp(("u",), "fine", {}), PutOp(("u",), "k", {"big": "x" * 200})
    async with RedisStateStore(settings.model_copy(update={"max_payload_bytes": 100})) as small:
        with pytest.raises(PayloadTooLarge):
            await RedisStore(small).abatch([fine, large])
        with pytest.raises(InvalidField, match="ttl"):
            await RedisStore(small).abatch([fine, PutOp(("u",), "k", {}, ttl=1e10)])
    assert await RedisStore(store).alist_namespaces() == []


async def test_a_batch_puts_nothing_behind_its_error(
    store: RedisStateStore, settings: Settings
) -> None:
    """Else a put that comes late would replace what the caller has put meanwhile."""
    held, released = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        held.set()
        await released.wait()

    async with (
        CommandProxy(settings.url.get_secret_value()) as proxy,
        changed(settings, url=proxy.url) as far,
    ):
        puts = [PutOp(("u",), key, {"n": 1}) for key in ("refused", "late")]
        with (
            proxy.answer("put_store_item", OOM),
            proxy.meanwhile("put_store_item", hold, at=2),
        ):
            batch = asyncio.ensure_future(RedisStore(far).abatch(puts))
            await held.wait()
            done, _ = await asyncio.wait({batch}, timeout=0.3)
            released.set()
            assert not done
            with pytest.raises(OutcomeUnknown, match="written, then: "):
                await batch
    assert [item.key for item in await RedisStore(store).asearch(("u",))] == ["late"]


async def test_namespaces_of_items_that_have_expired_are_not_listed(store: RedisStateStore) -> None:
    items = RedisStore(store)
    for number in range(3):
        await items.aput(("u",), f"{number}", {"n": 1})
    scripts = store.base.scripts
    for shard in range(GRAPH_SHARDS):
        expiries = store.base.keys.graph_item_expiries(shard)
        for entry in await scripts.transport.commands.zrange_by_lex(expiries, b"-", b"+"):
            await ask(scripts, "ZADD", expiries, 1, entry)
    await items.aput(("v",), "k", {"n": 1})
    assert await items.alist_namespaces() == [("v",)]


async def test_killed_writers_lose_no_item_that_was_acknowledged_and_each_is_found(
    store: RedisStateStore, settings: Settings
) -> None:
    url = settings.url.get_secret_value()
    done: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        processes: dict[str, ForkedProcess] = {}
        for name in "ab":
            argument = {"url": url, "namespace": settings.namespace, "name": name}
            processes[name] = await start_process("langgraph_items", argument)
            stack.push_async_callback(children.end, processes[name])
        for process in processes.values():
            await process.stdout.readline()
        for name, process in processes.items():
            for _ in range(20):
                done[name] = int(await process.stdout.readline())
        for name, process in processes.items():
            process.kill()
            await process.wait()
            said = (await process.stdout.read()).split()
            done[name] = int(said[-1]) if said else done[name]
    items = RedisStore(store)
    for name, last in done.items():
        wanted = {number for number in range(last + 1) if number % 3}
        found = await items.asearch(("users", name), limit=10_000)
        assert all(item.value == {"by": name, "number": int(item.key)} for item in found)
        # The one in flight may be there, too.
        assert wanted <= {int(item.key) for item in found} <= wanted | {last + 1}
        places = [(("users", name, f"{number % 5}"), f"{number}") for number in range(last + 1)]
        got = await items.abatch([GetOp(space, key) for space, key in places])
        assert [number for number, item in enumerate(got) if item is not None] == sorted(wanted)
        spaces = await items.alist_namespaces(prefix=("users", name))
        assert spaces == [("users", name, f"{number}") for number in range(5)]
