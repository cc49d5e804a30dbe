"""Who reads a listing takes no entry out whose item or thread is just being written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("langgraph")

from redis_state import RedisStateStore, Settings
from redis_state.errors import OutcomeUnknown
from redis_state.integrations.langgraph import RedisSaver, RedisStore
from redis_state.primitives.listing import ShardedListing
from redis_state.scripts import GraphListing
from redis_state.transport.keys import graph_task
from tests.support.agents.checkpoints import listed, put
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import CommandProxy

Call: TypeAlias = Callable[[RedisStateStore], Awaitable[Any]]

SESSION = "s"
# Its keys are named by a digest, so that an erasure finds it by the listing alone.
THREAD = graph_task(SESSION, "t" * 600)


async def put_item(store: RedisStateStore) -> None:
    await RedisStore(store).aput(("u", "ann"), THREAD, {"n": 1})


async def delete_item(store: RedisStateStore) -> None:
    await RedisStore(store).adelete(("u", "ann"), THREAD)


async def items(store: RedisStateStore) -> list[str]:
    return [item.key for item in await RedisStore(store).asearch(("u",))]


async def put_thread(store: RedisStateStore) -> None:
    await put(RedisSaver(store), THREAD, n=1)


async def put_claimed(store: RedisStateStore) -> None:
    saver = RedisSaver(store)
    async with saver.claim(THREAD):
        await put(saver, THREAD, n=1)


async def forget(store: RedisStateStore) -> None:
    await store.forget(SESSION)


async def threads(store: RedisStateStore) -> list[str]:
    return [
        each.config["configurable"]["thread_id"] for each in await listed(RedisSaver(store), None)
    ]


# How each is written, the script behind its first entering, and how it is found.
ITEM = (put_item, "put_store_item", items)
CHECKPOINT = (put_thread, "put_checkpoint", threads)
CLAIM = (put_claimed, "acquire_lease", threads)


@pytest.fixture
async def proxies(settings: Settings) -> AsyncIterator[list[CommandProxy]]:
    url = settings.url.get_secret_value()
    async with CommandProxy(url) as one, CommandProxy(url) as other:
        yield [one, other]


@pytest.fixture
async def stores(
    settings: Settings, proxies: list[CommandProxy]
) -> AsyncIterator[list[RedisStateStore]]:
    one, other = (changed(settings, url=proxy.url) for proxy in proxies)
    async with one, other:
        yield [one, other]


@pytest.mark.parametrize(("write", "script", "look"), [ITEM, CHECKPOINT, CLAIM])
async def test_a_reader_between_entry_and_write_leaves_it_listed(
    stores: list[RedisStateStore],
    proxies: list[CommandProxy],
    write: Call,
    script: str,
    look: Call,
) -> None:
    with proxies[0].meanwhile(script, lambda: look(stores[1])):
        await write(stores[0])
    assert await look(stores[1]) == [THREAD]


@pytest.mark.parametrize(
    ("writing", "leaving"),
    [
        (ITEM, (items, "unlist_missing")),
        (ITEM, (delete_item, "leave_listing")),
        (CHECKPOINT, (threads, "unlist_missing")),
        (CHECKPOINT, (forget, "leave_listing")),
        (CLAIM, (threads, "unlist_missing")),
    ],
)
@pytest.mark.role("any", why="it reads the names of all keys")
async def test_who_looked_before_the_write_takes_nothing_out_behind_it(
    store: RedisStateStore,
    stores: list[RedisStateStore],
    proxies: list[CommandProxy],
    writing: tuple[Call, str, Call],
    leaving: tuple[Call, str],
) -> None:
    """Readers, deletions and erasures alike."""
    write, script, look = writing
    remove, leave = leaving
    looked, written = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        looked.set()
        await written.wait()

    removing = list[asyncio.Future[Any]]()

    async def begin() -> None:
        removing.append(asyncio.ensure_future(remove(stores[1])))
        await looked.wait()

    with proxies[1].meanwhile(leave, hold):
        with proxies[0].meanwhile(script, begin):
            await write(stores[0])
        written.set()
        await removing[0]
    assert await look(store) == [THREAD]


async def test_a_write_whose_outcome_is_not_known_is_entered_behind_it(
    store: RedisStateStore,
) -> None:
    keys = store.base.keys
    shard = GraphListing(keys.graph_item_names(0), keys.graph_item_expiries(0))
    listing = ShardedListing(store.base.scripts, [shard], size=10)

    async def entries() -> list[tuple[int, bytes, bytes]]:
        return [one async for page in listing.pages(b"-") for one in page]

    async def write() -> None:
        ((_, entry, stamp),) = await entries()
        await listing.leave(0, entry, stamp)
        assert not await entries()
        raise OutcomeUnknown("server", "its link broke")

    with pytest.raises(OutcomeUnknown):
        await listing.around(0, b"thing", write, ttl_ms=60_000)
    assert [entry for _, entry, _ in await entries()] == [b"thing"]


async def test_a_write_that_cannot_be_entered_behind_it_is_not_said_not_to_have_happened(
    store: RedisStateStore, stores: list[RedisStateStore], proxies: list[CommandProxy]
) -> None:
    with (
        proxies[0].answer("enter_listing", at=2, times=None),
        pytest.raises(OutcomeUnknown, match="written, then: "),
    ):
        await put_item(stores[0])
    assert await items(store) == [THREAD]


async def test_a_deletion_whose_entry_cannot_be_taken_out_is_not_said_not_to_have_happened(
    store: RedisStateStore, stores: list[RedisStateStore], proxies: list[CommandProxy]
) -> None:
    await put_item(store)
    with (
        proxies[0].answer("leave_listing", times=None),
        pytest.raises(OutcomeUnknown, match="written, then: "),
    ):
        await delete_item(stores[0])
    assert await items(store) == []
