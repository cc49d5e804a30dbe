"""Connections that die without a word, and servers that are merely slow."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore
from redis_state.embedded.server import EmbeddedServer, start_embedded
from redis_state.errors import BackendUnavailable, OutcomeUnknown
from redis_state.primitives.blob import CHUNK_BYTES
from redis_state.settings import Settings
from redis_state.testing import eventually
from tests.integration.transport.test_subscriber import heard, subscriber_to
from tests.support.servers.faults import Proxy, own_binary, reached, sender_to
from tests.support.timing import spending

# What a busy machine may add.
LATE_S = 0.5


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[Proxy]:
    async with Proxy(settings.url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    with start_embedded(None, binary=own_binary()) as server:
        yield server


@contextmanager
def stopped(server: EmbeddedServer) -> Generator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_calls_on_a_half_open_connection_are_repeated_in_order_before_their_deadline(
    proxy: Proxy, key: str
) -> None:
    async with sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        assert proxy.half_open() == 1
        async with spending() as spent:
            calls = [
                sender.send("RPUSH", key, number, repeatable=True, timeout_s=2.4)
                for number in range(100)
            ]
            calls.append(sender.send("PEXPIRE", key, 60_000, repeatable=True))
            assert await asyncio.gather(*calls) == [*range(1, 101), 1]
        assert spent.s < 0.8 + LATE_S
        assert proxy.swallowed
        assert sender.connections == 2


async def test_a_call_whose_reply_was_lost_without_a_word_is_repeated_under_its_id(
    proxy: Proxy, settings: Settings, key: str
) -> None:
    async with (
        sender_to(proxy.url) as sender,
        sender_to(settings.url.get_secret_value()) as check,
    ):
        await sender.send("PING", repeatable=True)
        proxy.silence()
        call = sender.send("SET", key, "x", "PX", 60_000, repeatable=True, timeout_s=2.4)
        await eventually(lambda: proxy.swallowed > 0, "the server has executed the call")
        assert await check.send("GET", key, repeatable=True) == b"x"
        proxy.silence(silent=False)
        assert await call == b"OK"
        assert sender.connections == 2


async def test_a_call_that_may_not_be_repeated_keeps_its_whole_time_on_a_slow_server(
    own_server: EmbeddedServer,
) -> None:
    async with sender_to(own_server.url) as sender:
        await sender.send("PING", repeatable=True)
        with stopped(own_server):
            once = sender.send("RPUSH", "list", "x", repeatable=False, timeout_s=3)
            again = sender.send("RPUSH", "list", "y", repeatable=True, timeout_s=3)
            # Beyond a third of their time.
            await asyncio.wait({once, again}, timeout=1.2)
            assert not once.done()
        assert await once == 1
        assert await again == 2
        assert sender.connections == 1


async def test_a_slow_server_is_asked_again_and_not_in_a_storm(
    own_server: EmbeddedServer,
) -> None:
    async with sender_to(own_server.url) as sender:
        await sender.send("PING", repeatable=True)
        with stopped(own_server):
            calls = [
                sender.send("SET", f"key {n}", n, repeatable=True, timeout_s=6) for n in range(50)
            ]
            await asyncio.wait(calls, timeout=2.5)
            assert not any(call.done() for call in calls)
        assert await asyncio.gather(*calls) == [b"OK"] * 50
        # The first was given up once; on the second nothing was sent before the server answered.
        assert sender.connections == 2


async def test_what_is_large_is_given_its_whole_time(own_server: EmbeddedServer) -> None:
    large = bytes(1 << 20)
    async with sender_to(own_server.url) as sender:
        await sender.send("PING", repeatable=True)
        with stopped(own_server):
            call = sender.send("ECHO", large, repeatable=True, timeout_s=3)
            await asyncio.wait({call}, timeout=1.2)
        assert await call == large
        assert sender.connections == 1


async def test_a_chunk_of_an_artifact_is_repeated_before_its_deadline(
    proxy: Proxy, settings: Settings
) -> None:
    changed = {"url": SecretStr(proxy.url), "call_timeout_s": 2.4}
    async with RedisStateStore(settings.model_copy(update=changed)) as far:
        await reached(far)
        connections = far.transport.sender.connections
        assert proxy.half_open()
        data = bytes(2 * CHUNK_BYTES)
        artifact = await far.artifact_store.put_bytes(data)
        assert proxy.swallowed
        assert far.transport.sender.connections == connections + 1
        assert await far.artifact_store.get(artifact.id) == data


@pytest.mark.role("any", why="it sends ECHO")
async def test_a_half_open_connection_ends_what_may_not_be_repeated_at_its_deadline(
    proxy: Proxy,
) -> None:
    async with sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        assert proxy.half_open()
        began = time.monotonic()
        async with spending() as spent:
            with pytest.raises(OutcomeUnknown):
                await sender.send("ECHO", "once", repeatable=False, timeout_s=0.8)
        assert time.monotonic() - began >= 0.8
        assert spent.s < 0.8 + LATE_S
        assert await sender.send("ECHO", "on", repeatable=True) == b"on"


async def test_a_server_that_stays_away_fails_calls_at_their_deadline_as_before(
    proxy: Proxy,
) -> None:
    async with sender_to(proxy.url) as sender:
        await sender.send("PING", repeatable=True)
        proxy.refuse()
        assert proxy.half_open()
        began = time.monotonic()
        async with spending() as spent:
            with pytest.raises(BackendUnavailable):
                await sender.send("ECHO", "x", repeatable=True, timeout_s=1.5)
        assert time.monotonic() - began >= 1.5
        assert spent.s < 1.5 + LATE_S
        assert proxy.refused


@pytest.mark.slow
async def test_a_half_open_subscription_is_deaf_for_no_more_than_five_seconds(
    proxy: Proxy, settings: Settings
) -> None:
    channel = f"{settings.namespace}:channel"
    url = settings.url.get_secret_value()
    async with subscriber_to(proxy.url) as subscriber, sender_to(url) as sender:
        subscription = subscriber.subscribe(channel)
        assert await heard(subscription) is None
        assert proxy.half_open()
        async with spending() as spent:
            assert await heard(subscription) is None
        assert spent.s < 5
        await sender.send("SPUBLISH", channel, "again", repeatable=True)
        assert await heard(subscription) == b"again"
