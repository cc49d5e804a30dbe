"""A store over TLS whose links die while 40 callers use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from tests.support.servers.faults import Proxy, certificate, tls_server_context

CALLERS = 40


@asynccontextmanager
async def dying_links(
    settings: Settings, folder: Path
) -> AsyncGenerator[
    tuple[RedisStateStore, Callable[[Callable[[str], Awaitable[None]]], Awaitable[None]]]
]:
    """Make a store behind a proxy, and what runs a caller 40 times while the links are cut."""
    cert, key = certificate(folder, "IP:127.0.0.1")
    async with Proxy(settings.url.get_secret_value(), tls=tls_server_context(cert, key)) as proxy:
        proxy.dribble(900)
        url = SecretStr(f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}")

        async def dying(caller: Callable[[str], Awaitable[None]]) -> None:
            callers = [asyncio.ensure_future(caller(f"c{n}")) for n in range(CALLERS)]
            cut = 0
            while cut < 2 and not all(each.done() for each in callers):
                await asyncio.wait(callers, timeout=0.1)
                cut += bool(proxy.cut() if cut else proxy.half_open())
            await asyncio.gather(*callers)
            assert cut

        # Dead links may come one after the other, each found by its own deadline.
        patient = {"url": url, "call_timeout_s": 20.0}
        async with RedisStateStore(settings.model_copy(update=patient)) as store:
            # Before it is connected, calls have the shorter deadline of connecting.
            assert await store.load_memory_state("first") is None
            yield store, dying
