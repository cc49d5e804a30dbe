"""What LangGraph's store and a task's journal give, from a server that takes no writes."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from redis_state import RedisStateStore
from redis_state.errors import BackendUnavailable, StoreFull
from redis_state.integrations.langgraph import RedisStore
from redis_state.settings import make_settings
from redis_state.transport.keys import GRAPH_SHARDS
from redis_state.worker.tasks.histories import read_history
from tests.integration.servers.full.test_refused_writes import lose_the_disk
from tests.support.processes.pools import SESSION
from tests.support.servers.faults import run_server, sender_to, short_directory
from tests.support.tasks.archived.archives import ended
from tests.support.tasks.crash_states import send


async def keep(store: RedisStateStore) -> str:
    """Keep an item, an entry whose item is gone, and a task."""
    items = RedisStore(store)
    await items.aput(("u",), "k", {"n": 1})
    await items.aput(("u",), "gone", {"n": 2})
    await store.base.scripts.unlink(store.base.keys.graph_item("u", "gone"))
    return await ended(store)


async def read(store: RedisStateStore, task: str) -> None:
    """Read them, on the connection that the store has."""
    items, connections = RedisStore(store), store.transport.sender.connections
    found = await items.aget(("u",), "k", refresh_ttl=True)
    assert found is not None
    assert found.value == {"n": 1}
    assert [item.key for item in await items.asearch((), refresh_ttl=True)] == ["k"]
    assert await items.alist_namespaces() == [("u",)]
    assert await read_history(store, SESSION, task) is not None
    assert store.transport.sender.connections == connections


async def test_items_are_read_from_a_full_server_and_their_entries_live_as_long() -> None:
    with short_directory() as directory, run_server(directory) as url:
        async with RedisStateStore(make_settings(url)) as store:
            task = await keep(store)
            keys = store.base.keys
            listed = [keys.graph_item_expiries(n) for n in range(GRAPH_SHARDS)]
            (expiries,) = [key for key in listed if await send(store, "EXISTS", key)]
            before = float(await send(store, "ZSCORE", expiries, b"u\0\0k"))
            await send(store, "PEXPIRE", keys.graph_item("u", "k"), 60_000)
            await send(store, "CONFIG", "SET", "maxmemory", 1)
            with pytest.raises(StoreFull):
                await RedisStore(store).aput(("u",), "new", {"n": 3})
            assert await send(store, "ZSCORE", expiries, b"u\0\0new") is None
            await read(store, task)
            assert await send(store, "PTTL", keys.graph_item("u", "k")) > 60_000
            assert float(await send(store, "ZSCORE", expiries, b"u\0\0k")) > before
            # What it has of what is gone is taken out: that makes room.
            assert await send(store, "ZSCORE", expiries, b"u\0\0gone") is None


@pytest.mark.server
async def test_items_and_journals_are_read_while_a_server_has_too_few_replicas() -> None:
    with short_directory() as directory, run_server(directory) as url:
        async with RedisStateStore(make_settings(url)) as store, sender_to(url) as admin:
            task = await keep(store)
            await admin.send("CONFIG", "SET", "min-replicas-to-write", 1, repeatable=True)
            with pytest.raises(BackendUnavailable, match="NOREPLICAS"):
                await admin.send("SET", "k", 1, "PX", 1, repeatable=True, timeout_s=0.5)
            await read(store, task)


@pytest.mark.server
async def test_items_and_journals_are_read_while_a_server_cannot_save() -> None:
    with short_directory() as directory, run_server(directory, "--save", "3600 1") as url:
        async with RedisStateStore(make_settings(url)) as store:
            task = await keep(store)
            await lose_the_disk(store, directory)
            with pytest.raises(StoreFull, match="MISCONF"):
                await RedisStore(store).aput(("u",), "k", {"n": 2})
            await read(store, task)
