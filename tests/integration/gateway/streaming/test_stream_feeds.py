"""Reads that clients of a durable stream share: for how long, and what waiting clients learn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from redis_state.errors import AuthenticationFailed
from redis_state.gateway import Gateway, GatewayLimits, create_gateway
from redis_state.gateway.durable_streams.feeds import StreamFeeds
from redis_state.models.streams import BEGINNING, StreamLifetime
from redis_state.testing import eventually
from tests.support.http.gateway import caller, tokens
from tests.support.scripts.replies import ask

_PATH = "/v1/stream/s"


def _waiting(app: Gateway) -> int:
    return app._usage.streams


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_a_stream_lives_while_a_client_waits_which_learns_if_it_is_gone(
    store: RedisStateStore, live: str
) -> None:
    app = create_gateway(store, auth=tokens, limits=GatewayLimits(long_poll_s=60))
    stream, _ = await store.streams.create("s", lifetime=StreamLifetime(ttl_s=1))
    scripts, info = store.base.scripts, store.base.keys.stream("s").info
    query = {"offset": stream.offset, "live": live}
    async with caller(app, "ann", "read:*") as http:
        waits = asyncio.create_task(http.get(_PATH, params=query))
        await eventually(lambda: _waiting(app) == 1, "a client waits")
        for _ in range(2):
            await ask(scripts, "PEXPIRE", info, 60_000)

            async def begins_again() -> bool:
                left_ms: int = await store.transport.commands.pttl(info)
                return 0 < left_ms <= 1_000

            await eventually(begins_again, "the lifetime begins again")
        await ask(scripts, "DEL", info)
        ended = await waits
        assert ended.status_code == (404 if live == "long-poll" else 200)
        assert (await http.get(_PATH, params=query)).status_code == 404
    await app.aclose()


async def test_clients_that_read_at_once_share_a_page_and_none_but_the_last_is_kept(
    store: RedisStateStore,
) -> None:
    await store.streams.create("s")
    for _ in range(20):
        await store.streams.append("s", b"x" * (256 << 10))
    async with StreamFeeds(store.streams) as feeds, feeds.join("s") as feed:
        offset, pages = BEGINNING, 0
        while True:
            found: list[Any] = await asyncio.gather(*(feed.read(offset) for _ in range(5)))
            assert all(each is found[0] for each in found)
            page = found[0].page
            offset, at_end, pages = page.offset, page.at_end, pages + 1
            assert len(feed._reads) == (1 if at_end else 0)
            if at_end:
                break
        assert pages >= 10
        assert await feed.read(page.start) is found[0]
        await eventually(lambda: not feed._reads, "what nobody reads is dropped")


async def test_a_feed_that_hears_no_more_ends_the_waits_of_its_clients(
    store: RedisStateStore,
) -> None:
    limits = GatewayLimits(long_poll_s=60, events_s=60)
    app = create_gateway(store, auth=tokens, limits=limits)
    stream, _ = await store.streams.create("s")
    queries = [{"offset": stream.offset, "live": live} for live in ("long-poll", "sse")]
    async with caller(app, "ann", "read:*") as http:
        waits = [asyncio.create_task(http.get(_PATH, params=each)) for each in queries]
        await eventually(lambda: _waiting(app) == 2, "both clients wait")
        (feeds,) = [each for each in app._hubs if isinstance(each, StreamFeeds)]
        await eventually(lambda: sum(each.clients for each in feeds._feeds.values()) == 2, "joined")
        feed = feeds._feeds["s"]
        await feed.ready()
        feed._fail(AuthenticationFailed("redis:6379", "the password has changed"))
        polled, followed = await asyncio.gather(*waits)
        assert (polled.status_code, followed.status_code) == (503, 200)
        await store.streams.append("s", b"x")
        # The next one has a feed of its own.
        assert (await http.get(_PATH, params=queries[0])).content == b"x"
    await app.aclose()
