"""A store over TLS whose links die without a word while many call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from tests.support.servers.faults import Proxy, certificate, tls_server_context


@asynccontextmanager
async def over_tls(
    settings: Settings, folder: Path, *, dribbled: int | None = None, **changed: Any
) -> AsyncGenerator[tuple[RedisStateStore, Proxy]]:
    """Give a store behind a proxy that speaks TLS, in pieces of so many bytes, and the proxy."""
    cert, key = certificate(folder, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        if dribbled is not None:
            proxy.dribble(dribbled)
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        # Three dead links may come one after the other, each found by its own deadline.
        changed |= {"url": SecretStr(url), "call_timeout_s": 20.0}
        async with RedisStateStore(settings.model_copy(update=changed)) as store:
            # Before it is connected, calls have the shorter deadline of connecting.
            assert await store.load_memory_state("first") is None
            yield store, proxy


async def while_links_die(
    proxy: Proxy, callers: Sequence[asyncio.Task[None]], *, most: int = 3
) -> None:
    """Wait for callers, whose links die without a word until so many have."""
    died = 0
    while died < most and not all(each.done() for each in callers):
        await asyncio.wait(callers, timeout=0.1)
        died += proxy.half_open()
    await asyncio.gather(*callers)
    assert died
