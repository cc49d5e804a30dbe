"""Durable streams over TLS, by many producers, on links that die without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.models.streams import BEGINNING, ProducerBatch
from tests.support.payloads import KEYS
from tests.support.servers.proxies.dying_links import over_tls, while_links_die

PRODUCERS, BATCHES = 40, 8
TEXT = "text/plain"


async def produce(store: RedisStateStore, number: int) -> None:
    """Append to a stream of one's own, and to one that all share; read the own one back."""
    own = f"p {number} {{}}*:%\u00e9"
    await store.streams.create(own, content_type=TEXT)
    for batch in range(BATCHES):
        row = f"{number}/{batch} {'x' * 2_000}\n".encode()
        for path in (own, "shared"):
            made = ProducerBatch(f"producer {number}", 0, batch)
            await store.streams.append(path, row, content_type=TEXT, batch=made)
    rows = [row.split(b" ")[0].decode() for row in await lines(store, own)]
    assert rows == [f"{number}/{batch}" for batch in range(BATCHES)]


async def lines(store: RedisStateStore, path: str) -> list[bytes]:
    """Read a stream page by page."""
    found, offset = list[bytes](), BEGINNING
    while True:
        page = await store.streams.read(path, offset=offset, most_rows=50)
        found += page.rows
        offset = page.offset
        if page.at_end:
            return found


async def test_40_producers_append_once_and_in_order_though_their_links_die(
    settings: Settings, tmp_path: Path
) -> None:
    sealed = {"payload_keys": SecretStr(KEYS[0])}
    async with over_tls(settings, tmp_path, dribbled=700, **sealed) as (store, proxy):
        await store.streams.create("shared", content_type=TEXT)
        producers = [asyncio.create_task(produce(store, n)) for n in range(PRODUCERS)]
        await while_links_die(proxy, producers)
        shared = [row.split(b" ")[0].decode() for row in await lines(store, "shared")]
    assert sorted(shared) == sorted(f"{n}/{b}" for n in range(PRODUCERS) for b in range(BATCHES))
    for number in range(PRODUCERS):
        mine = [each for each in shared if each.startswith(f"{number}/")]
        assert mine == [f"{number}/{batch}" for batch in range(BATCHES)]
