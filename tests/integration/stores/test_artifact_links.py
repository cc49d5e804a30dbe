"""Artifacts over TLS, of many callers, on links that die without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from tests.support.servers.faults import Proxy, certificate, tls_server_context

CALLERS = 40
# A full chunk, and one that is not.
SIZE = 300_000


async def keep(store: RedisStateStore, number: int) -> None:
    """Keep an artifact, and read it back."""
    content = f"{number} ".encode() * SIZE
    kept = await store.artifact_store.put_bytes(
        content[:SIZE], filename=f"c {number} {{}}*:%\u00e9"
    )
    assert await store.artifact_store.get(kept.id) == content[:SIZE]


async def test_40_callers_get_their_own_artifacts_though_their_links_die(
    settings: Settings, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        # Three dead links may come one after the other, each found by its own deadline.
        changed: dict[str, Any] = {"url": SecretStr(url), "call_timeout_s": 20.0}
        async with RedisStateStore(settings.model_copy(update=changed)) as store:
            callers = [asyncio.create_task(keep(store, n)) for n in range(CALLERS)]
            cut = 0
            while cut < 3 and not all(each.done() for each in callers):
                await asyncio.wait(callers, timeout=0.05)
                cut += proxy.half_open()
            await asyncio.gather(*callers)
            names = [each.filename for each in await store.artifact_store.list()]
        assert cut
    assert sorted(map(str, names)) == sorted(f"c {n} {{}}*:%\u00e9" for n in range(CALLERS))
