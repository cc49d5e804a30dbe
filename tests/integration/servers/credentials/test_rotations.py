"""Passwords are replaced while callers, a watcher and a pool go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.settings import Credentials
from redis_state.testing import eventually
from redis_state.transport.connections.login import login_of
from tests.support.samples import update as make_update
from tests.support.servers.changes.credentials import (
    USER,
    VALID_S,
    Report,
    Vault,
    rotating_server,
    settings_of,
)
from tests.support.servers.faults import (
    Proxy,
    certificate,
    tls_server_context,
)
from tests.support.servers.sets.clusters import running_cluster
from tests.support.servers.sets.load import load, tasks
from tests.support.servers.sets.sentinels import running_sentinels
from tests.support.sizes import sizes

WRITERS = 24


async def rotated_under_load(settings: Settings, vault: Vault, rotations: int) -> None:
    """Rotate while callers, a watcher and tasks are at work; each fourth time cut them off."""
    async with (
        RedisStateStore(settings) as store,
        tasks(store) as run_a_task,
        load(store, writers=WRITERS).running() as writers,
    ):
        cut = 0
        for number in range(rotations):
            running = asyncio.ensure_future(run_a_task())
            await vault.rotate()
            if number % 4 == 3:
                cut += await vault.cut()
            await running
        await writers.more()
        assert cut >= rotations // 4
    assert vault.made == rotations + 1


@pytest.mark.server
@pytest.mark.parametrize("rotations", sizes(8, 100))
async def test_no_call_fails_while_passwords_are_replaced(rotations: int) -> None:
    async with rotating_server() as (url, vault):
        await rotated_under_load(settings_of(url, vault), vault, rotations)


async def test_connections_that_need_credentials_at_once_share_one_answer() -> None:
    vault = Vault(valid_s=60)
    login = login_of(settings_of("redis://nowhere", vault))
    assert login is not None
    given = await asyncio.gather(*(login.current() for _ in range(50)))
    assert vault.given == 1
    # One that a server has refused is not given again.
    login.reject(given[0])
    await asyncio.gather(*(login.current() for _ in range(50)))
    assert vault.given == 2


@pytest.mark.server
async def test_a_live_connection_logs_in_again_between_two_calls() -> None:
    async with rotating_server() as (url, vault), RedisStateStore(settings_of(url, vault)) as store:
        await store.save_update(make_update("before"))
        for number in range(3):
            await vault.rotate()
            await store.save_update(make_update(f"u{number}"))
        assert store.transport.sender.connections == 1
        assert await store.transport.sender.send("ACL", "WHOAMI", repeatable=True) == USER.encode()


class Loses:
    """Drops a refused login from what a server answers, as Redis 8.2 does behind other commands."""

    answer = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"

    def __init__(self) -> None:
        self.others = 0

    def __call__(self, data: bytes) -> bytes:
        rest = data.replace(self.answer, b"")
        # What came with it was the reply to something else.
        self.others += rest != data and bool(rest)
        return rest


async def test_a_refused_login_without_an_answer_gives_nobody_the_reply_to_another_call() -> None:
    async with rotating_server() as (url, vault), Proxy(url) as proxy:
        loses = Loses()
        wrong = 0

        async def often_wrong() -> Credentials:
            nonlocal wrong
            if vault.given % 2 == 0:
                return await vault()
            vault.given += 1
            wrong += 1
            return Credentials(SecretStr("wrong"), USER, VALID_S)

        settings = settings_of(proxy.url, often_wrong, call_timeout_s=3.0)
        async with RedisStateStore(settings) as store:
            names = [f"k{number}" for number in range(20)]
            for name in names:
                await store.save_memory_state(name, {"name": name})
            proxy.change(loses)

            async def read(name: str) -> None:
                while wrong < 4 or proxy.changed < 2:
                    assert await store.load_memory_state(name) == {"name": name}

            await asyncio.gather(*map(read, names))
        # It was sent alone.
        assert loses.others == 0


@pytest.mark.server
async def test_passwords_are_replaced_over_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    async with (
        rotating_server() as (url, vault),
        Proxy(url, tls=tls_server_context(cert, key)) as proxy,
    ):
        address = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}"
        await rotated_under_load(settings_of(address, vault, call_timeout_s=30.0), vault, 4)


@pytest.mark.server
async def test_passwords_are_replaced_on_every_node_of_a_cluster() -> None:
    async with running_cluster() as cluster:

        def at(port: int) -> Report:
            return lambda *command: cluster.ask(port, *command)

        vault = Vault(*map(at, cluster.ports))
        await vault.rotate()
        settings = settings_of(cluster.url, vault, call_timeout_s=20.0)
        await rotated_under_load(settings, vault, 4)


@pytest.mark.server
async def test_passwords_are_replaced_behind_sentinels(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    async with running_sentinels(unused_tcp_port_factory) as sentinels:

        def at(port: int) -> Report:
            return lambda *command: sentinels.ask(port, *command)

        vault = Vault(*map(at, sentinels.ports))
        await vault.rotate()
        settings = settings_of(sentinels.url, vault, call_timeout_s=20.0)
        await rotated_under_load(settings, vault, 4)


async def test_a_login_is_renewed_whatever_became_of_the_last_try() -> None:
    vault = Vault(valid_s=0.05)
    login = login_of(settings_of("redis://nowhere", vault))
    assert login is not None
    used = await login.current()
    vault.made += 1
    tries: list[Credentials] = []

    async def accept(fresh: Credentials) -> None:
        tries.append(fresh)
        if len(tries) == 1:
            raise RuntimeError("secret-text")

    renewing = asyncio.create_task(login.renew(used, accept))
    try:
        await eventually(lambda: len(tries) == 2, "it tries again")
        assert tries[1].password.get_secret_value() == vault.password
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})


@pytest.mark.server
async def test_calls_go_on_while_a_provider_fails() -> None:
    async with rotating_server() as (url, vault):
        broken = False

        async def provide() -> Credentials:
            if broken:
                vault.given += 1
                raise OSError
            return await vault()

        async with RedisStateStore(settings_of(url, provide)) as store:
            await store.save_update(make_update("u0"))
            broken = True
            given = vault.given
            await eventually(lambda: vault.given > given + 1, "it has failed")
            await store.save_update(make_update("u1"))
            assert store.transport.sender.connections == 1
