"""Artifacts over TLS, of many callers, on links that die without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis_state import RedisStateStore, Settings
from tests.support.servers.proxies.dying_links import over_tls, while_links_die

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
    async with over_tls(settings, tmp_path) as (store, proxy):
        callers = [asyncio.create_task(keep(store, n)) for n in range(CALLERS)]
        await while_links_die(proxy, callers)
        names = [each.filename for each in await store.artifact_store.list()]
    assert sorted(map(str, names)) == sorted(f"c {n} {{}}*:%\u00e9" for n in range(CALLERS))
