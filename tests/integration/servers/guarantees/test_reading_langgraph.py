"""What LangGraph reads waits for no replica, also where it renews or tidies a listing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from langgraph.store.base import PutOp

from redis_state import RedisStateStore
from redis_state.integrations.langgraph import RedisSaver, RedisStore
from redis_state.transport.keys import GRAPH_SHARDS
from tests.support.agents.checkpoints import listed, put
from tests.support.servers.changes.rollback import Replicas
from tests.support.servers.sets.guarantees import late, settings_of
from tests.support.tasks.crash_states import send
from tests.support.timing import LONG_S


@pytest.mark.server
async def test_items_and_threads_are_read_while_no_replica_confirms(lagging: Replicas) -> None:
    async with RedisStateStore(settings_of(lagging.url)) as store:
        items, saver, keys = RedisStore(store), RedisSaver(store), store.base.keys
        for key in ("k", "gone"):
            await items.aput(("u",), key, {"n": 1})
            await put(saver, key, n=1)
        await store.base.scripts.unlink(keys.graph_item("u", "gone"))
        await store.base.scripts.unlink(keys.graph_thread("gone"))
        await send(store, "PEXPIRE", keys.graph_item("u", "k"), 60_000)
        await lagging.mark()
        found = await items.aget(("u",), "k", refresh_ttl=True)
        assert found is not None
        assert [item.key for item in await items.asearch((), refresh_ttl=True)] == ["k"]
        assert await items.alist_namespaces() == [("u",)]
        (thread,) = await listed(saver, None)
        assert thread.config["configurable"]["thread_id"] == "k"
        # All of it was done, and is no promise: both were renewed, and what is gone was taken out.
        assert await send(store, "PTTL", keys.graph_item("u", "k")) > 60_000
        for number in range(GRAPH_SHARDS):
            for listing in (keys.graph_item_names(number), keys.graph_threads(number)):
                names: list[bytes] = await send(store, "ZRANGE", listing, 0, -1)
                assert not any(b"gone" in name for name in names)


@pytest.mark.server
@pytest.mark.parametrize(
    ("value", "script", "at"), [({"n": 2}, "enter_listing", 2), (None, "leave_listing", 1)]
)
async def test_a_listing_that_a_write_changes_is_confirmed_too(
    lagging: Replicas,
    monkeypatch: pytest.MonkeyPatch,
    value: dict[str, Any] | None,
    script: str,
    at: int,
) -> None:
    """Else a failover could leave an item that no search finds, or a namespace without items."""
    async with RedisStateStore(settings_of(lagging.url, call_timeout_s=LONG_S)) as store:
        items, calls, reached = RedisStore(store), 0, asyncio.Event()
        await items.aput(("u",), "k", {"n": 1})
        change = getattr(store.base.scripts, script)

        async def unconfirmed(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                await lagging.mark()
                reached.set()
            return await change(*args, **named)

        monkeypatch.setattr(store.base.scripts, script, unconfirmed)
        writing = asyncio.ensure_future(items.abatch([PutOp(("u",), "k", value)]))
        await reached.wait()
        await late()
        assert not writing.done()
        lagging.hear()
        await writing
        assert calls == at
