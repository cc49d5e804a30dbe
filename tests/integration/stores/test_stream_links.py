"""Durable streams over TLS, by many producers, on links that die without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.models.streams import BEGINNING, ProducerBatch
from tests.support.payloads import KEYS
from tests.support.servers.faults import Proxy, certificate, tls_server_context

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
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        proxy.dribble(700)
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        # Three dead links may come one after the other, each found by its own deadline.
        changed: dict[str, Any] = {"url": SecretStr(url), "payload_keys": SecretStr(KEYS[0])}
        changed["call_timeout_s"] = 20.0
        async with RedisStateStore(settings.model_copy(update=changed)) as store:
            await store.streams.create("shared", content_type=TEXT)
            producers = [asyncio.create_task(produce(store, n)) for n in range(PRODUCERS)]
            cut = 0
            while cut < 3 and not all(each.done() for each in producers):
                await asyncio.wait(producers, timeout=0.1)
                cut += proxy.half_open()
            await asyncio.gather(*producers)
            shared = [row.split(b" ")[0].decode() for row in await lines(store, "shared")]
        assert cut
    assert sorted(shared) == sorted(f"{n}/{b}" for n in range(PRODUCERS) for b in range(BATCHES))
    for number in range(PRODUCERS):
        mine = [each for each in shared if each.startswith(f"{number}/")]
        assert mine == [f"{number}/{batch}" for batch in range(BATCHES)]
