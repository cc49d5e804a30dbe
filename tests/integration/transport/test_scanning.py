"""Walks over what a server has, while another process takes over behind its address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.migration.namespace import ServerNamespace
from redis_state.settings import make_settings
from redis_state.transport.commands import Commands
from tests.support.servers.changes.rollback import Rollback, rolling_back
from tests.support.servers.faults import Proxy

pytestmark = pytest.mark.server
COUNT, NAMESPACE = 10_000, "walked"
KEY = f"{NAMESPACE}:v1:{{x}}:key"

Pages = Callable[[Commands], AsyncGenerator[list[bytes]]]
WALKS: dict[str, Pages] = {
    "keys": lambda commands: commands.scan_all(f"{NAMESPACE}:name-*"),
    "members": lambda commands: commands.zscan_all(KEY, count=500),
}


async def fill(store: RedisStateStore) -> set[bytes]:
    """Write as many keys as members of a sorted set; return their names."""
    send = store.transport.sender.send
    names = [f"{NAMESPACE}:name-{number}" for number in range(COUNT)]
    for start in range(0, COUNT, 500):
        some = names[start : start + 500]
        members = [part for name in some for part in ("1", name)]
        await asyncio.gather(
            send("ZADD", KEY, *members, repeatable=True),
            *(send("SET", name, "", "PX", 600_000, repeatable=True) for name in some),
        )
    await send("PEXPIRE", KEY, 600_000, repeatable=True)
    return {name.encode() for name in names}


def settings_of(server: Rollback) -> Settings:
    return make_settings(server.url, namespace=NAMESPACE, call_timeout_s=20.0)


async def restart(server: Rollback) -> None:
    """Let the server come back as it was, in another process: each has its own order of names."""
    await server.mark()
    await server.stop()
    await server.start()


@pytest.mark.parametrize("what", WALKS)
async def test_nothing_is_left_out_though_the_server_is_started_again(what: str) -> None:
    async with rolling_back() as server, RedisStateStore(settings_of(server)) as store:
        names = await fill(store)
        found, pages = set[bytes](), 0
        async for page in WALKS[what](store.transport.commands):
            found.update(page)
            pages += 1
            if pages == 4:
                assert found < names
                await restart(server)
        assert found == names
        assert pages < 2 * COUNT // 500 + 10


async def test_a_walk_without_trouble_reads_each_page_once() -> None:
    async with rolling_back() as server, RedisStateStore(settings_of(server)) as store:
        await fill(store)
        for walk in WALKS.values():
            pages = [page async for page in walk(store.transport.commands)]
            assert COUNT <= sum(map(len, pages)) < COUNT * 1.5


async def test_a_lost_link_to_the_same_process_costs_no_second_walk() -> None:
    async with rolling_back() as server, Proxy(server.url) as proxy:
        through = settings_of(server).model_copy(update={"url": SecretStr(proxy.url)})
        async with RedisStateStore(through) as store:
            names, found = await fill(store), list[bytes]()
            async for page in WALKS["keys"](store.transport.commands):
                if not found:
                    assert proxy.cut()
                found += page
        assert set(found) == names
        assert len(found) < COUNT * 1.5


async def test_a_large_key_is_copied_whole_though_its_server_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rolling_back() as server:
        async with RedisStateStore(settings_of(server)) as store:
            names = await fill(store)
        async with ServerNamespace(settings_of(server)) as namespace:
            read_part: Callable[..., Awaitable[Any]] = namespace._scripts.read_part
            parts = 0

            async def restart_in_the_middle(*of: Any, **options: Any) -> Any:
                nonlocal parts
                parts += 1
                if parts == 4:
                    await restart(server)
                return await read_part(*of, **options)

            monkeypatch.setattr(namespace._scripts, "read_part", restart_in_the_middle)
            content, _ = await namespace.read(KEY)
        assert content is not None
        assert names == {name for _, items in content.parts() for name in items[1::2]}
