"""Credentials that change while callers, a watcher and a pool go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.credentials import CredentialProvider

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.settings import Credentials, make_settings
from redis_state.testing import eventually
from redis_state.transport.connections.login import login_of
from redis_state.transport.sending.sender import Sender
from tests.support.samples import update as make_update
from tests.support.servers.clusters import running_cluster
from tests.support.servers.faults import (
    Proxy,
    certificate,
    run_server,
    sender_to,
    short_directory,
    tls_server_context,
)
from tests.support.servers.load import load, tasks
from tests.support.servers.sentinels import running_sentinels
from tests.support.sizes import sizes
from tests.support.timing import LONG_S

USER = "agent"
VALID_S = 0.3
WRITERS = 24
RIGHTS = ("on", "~*", "&*", "+@all")

Report = Callable[..., Awaitable[Any]]


class Vault:
    """Makes passwords, tells the servers, and provides the newest."""

    def __init__(self, *servers: Report, valid_s: float | None = VALID_S) -> None:
        self._servers = servers
        self._valid_s = valid_s
        self.made = 0
        self.given = 0

    @property
    def password(self) -> str:
        return f"secret-{self.made}"

    async def add(self) -> None:
        """Have the servers accept the newest password too."""
        await self._each("ACL", "SETUSER", USER, *RIGHTS, f">{self.password}")

    async def drop(self, old: str) -> None:
        """Have the servers refuse a password."""
        await self._each("ACL", "SETUSER", USER, f"<{old}")

    async def rotate(self) -> None:
        """Make another password the only one, after a time in which both are accepted."""
        old = self.password
        self.made += 1
        await self.add()
        if self.made > 1:
            await asyncio.sleep(VALID_S)
            await self.drop(old)

    async def cut(self) -> int:
        """End every connection of the user; return how many there were."""
        return sum(await self._each("CLIENT", "KILL", "USER", USER))

    async def __call__(self) -> Credentials:
        """Provide the newest password."""
        self.given += 1
        # As a service that is queried does.
        await asyncio.sleep(0.005)
        return Credentials(SecretStr(self.password), USER, self._valid_s)

    async def _each(self, *command: str) -> list[Any]:
        return [await report(*command) for report in self._servers]


def report_to(sender: Sender) -> Report:
    def report(*command: str) -> Awaitable[Any]:
        return sender.send(*command, repeatable=True)

    return report


@asynccontextmanager
async def server(*options: str) -> AsyncGenerator[tuple[str, Vault]]:
    """Run a server whose user has a password of a vault."""
    with short_directory() as directory, run_server(directory, *options) as url:
        async with sender_to(url) as admin:
            vault = Vault(report_to(admin))
            await vault.rotate()
            yield url, vault


def settings_of(url: str, provider: Any, **options: Any) -> Settings:
    return make_settings(url, namespace="rotates", credentials=provider, **options)


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
    async with server() as (url, vault):
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
    async with server() as (url, vault), RedisStateStore(settings_of(url, vault)) as store:
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
    async with server() as (url, vault), Proxy(url) as proxy:
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
    async with server() as (url, vault), Proxy(url, tls=tls_server_context(cert, key)) as proxy:
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


class RedisPys(CredentialProvider):
    """A provider of redis-py."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def get_credentials(self) -> tuple[str, str]:
        """Return a user and a password."""
        return USER, self._vault.password


class RedisPysPlain:
    """A provider for one password of the URL's user."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    async def get_credentials_async(self) -> tuple[str]:
        """Return a password."""
        return (self._vault.password,)


@pytest.mark.server
@pytest.mark.parametrize("kind", [RedisPys, RedisPysPlain])
async def test_providers_of_redis_py_will_do(kind: Any) -> None:
    async with server() as (url, vault):
        address = url.replace("unix://", f"unix://{USER}@") if kind is RedisPysPlain else url
        async with RedisStateStore(settings_of(address, kind(vault))) as store:
            await store.save_update(make_update("u0"))
            await vault.rotate()
            assert await vault.cut()
            await store.save_update(make_update("u1"))
            assert len((await store.read_updates("session")).values) == 2


@pytest.mark.server
async def test_a_password_file_is_replaced_as_kubernetes_does(tmp_path: Path) -> None:
    async with server() as (url, vault):

        def write() -> None:
            folder = tmp_path / f"..{vault.made}"
            folder.mkdir()
            (folder / "password").write_text(f"{vault.password}\n")
            (tmp_path / "new").symlink_to(folder)
            (tmp_path / "new").replace(tmp_path / "data")

        write()
        address = url.replace("unix://", f"unix://{USER}@")
        settings = make_settings(
            address, namespace="rotates", password_file=tmp_path / "data" / "password"
        )
        async with RedisStateStore(settings) as store:
            await store.save_update(make_update("u0"))
            old = vault.password
            vault.made += 1
            await vault.add()
            write()
            # The file is not looked at all the time; a connection that is cut reads it.
            await vault.drop(old)
            assert await vault.cut()
            await store.save_update(make_update("u1"))


@pytest.mark.server
async def test_a_refused_password_is_asked_for_again_until_the_deadline() -> None:
    """The server may be told of a new password before the provider is, or after."""
    async with server() as (url, vault):
        settings = settings_of(url, vault, call_timeout_s=10.0)
        async with RedisStateStore(settings) as store:
            await store.save_update(make_update("u0"))
            old = vault.password
            vault.made += 1  # provided, and unknown to the server
            await vault.drop(old)
            assert await vault.cut()
            waiting = asyncio.ensure_future(store.save_update(make_update("u1")))
            given = vault.given
            await eventually(lambda: vault.given > given + 2, "it is asked again")
            assert not waiting.done()
            await vault.add()
            await waiting
        short = settings.model_copy(update={"call_timeout_s": 0.5})
        vault.made += 1
        async with RedisStateStore(short) as store:
            with pytest.raises(BackendUnavailable, match="password is refused") as refused:
                await store.save_update(make_update("u2"))
            assert vault.password not in str(refused.value)


async def nothing() -> Any:
    return "secret-text"


async def fails() -> Credentials:
    raise RuntimeError("secret-text")


async def hangs() -> Credentials:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def is_cancelled() -> Credentials:
    raise asyncio.CancelledError


async def no_secret() -> Credentials:
    return Credentials("secret-text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def no_text() -> Credentials:
    return Credentials(SecretStr("secret-text\udc80"))


async def nan() -> Credentials:
    return Credentials(SecretStr("secret-text"), valid_s=float("nan"))


async def words() -> Credentials:
    return Credentials(SecretStr("secret-text"), valid_s="60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.server
@pytest.mark.parametrize(
    ("provider", "says"),
    [
        (is_cancelled, "is_cancelled failed: CancelledError"),
        (no_secret, "no_secret gave a user or a password of a wrong type"),
        (no_text, "no_text gave a user or a password that is no text in UTF-8"),
        (nan, "nan gave a valid_s that is no number of seconds"),
        (words, "words gave a valid_s that is no number of seconds"),
        (nothing, "nothing gave str: Credentials are needed"),
        (fails, "fails failed: RuntimeError"),
        (hangs, "hangs gave no credentials within the deadline"),
    ],
)
async def test_a_provider_that_gives_none_is_named(
    provider: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with server() as (url, _):
        settings = settings_of(url, provider, call_timeout_s=4.0, connect_timeout_s=1.0)
        async with RedisStateStore(settings) as store:
            with pytest.raises(BackendUnavailable, match=says) as refused:
                await store.save_update(make_update("u"))
        assert "secret-text" not in str(refused.value) + caplog.text + repr(settings)


@pytest.mark.server
async def test_a_provider_that_does_not_end_when_it_is_cancelled_holds_nobody_up() -> None:
    async with server() as (url, vault):
        released = asyncio.Event()

        async def swallows() -> Credentials:
            vault.given += 1
            while vault.given == 1 and not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()
            return await vault()

        settings = settings_of(url, swallows, call_timeout_s=LONG_S, connect_timeout_s=0.5)
        try:
            async with RedisStateStore(settings) as store:
                calls = [store.load_memory_state(f"k{number}") for number in range(5)]
                # The first deadline to connect may pass before it is called again.
                await asyncio.gather(*calls, return_exceptions=True)
                await store.save_update(make_update("u"))
                assert not released.is_set()
        finally:
            released.set()


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
    async with server() as (url, vault):
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


@pytest.mark.server
@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read: FileNotFoundError"), ("\n", "is empty")],
)
async def test_a_password_file_without_a_password_is_named(
    tmp_path: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_text(content)
    async with server() as (url, _):
        settings = make_settings(url, password_file=path, call_timeout_s=0.3)
        async with RedisStateStore(settings) as store:
            with pytest.raises(BackendUnavailable, match=says) as refused:
                await store.save_update(make_update("u"))
            assert str(path) in str(refused.value)


@pytest.mark.server
async def test_a_password_file_that_nobody_writes_to_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    os.mkfifo(path)
    async with server() as (url, _):
        settings = make_settings(url, password_file=path, call_timeout_s=0.3)
        async with RedisStateStore(settings) as store:
            with pytest.raises(BackendUnavailable, match="is no regular file") as refused:
                await store.save_update(make_update("u"))
            assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"credentials": "nowhere:none"}, "cannot be imported"),
        ({"credentials": "os"}, "package.module:name"),
        ({"credentials": 7}, "must be a provider"),
        ({"credentials": nothing, "password_file": "x"}, "give one"),
        ({"credentials": nothing, "url": "redis://:pw@h"}, "has a password"),
        ({"credentials": nothing, "url": "embedded://"}, "an embedded server"),
    ],
)
def test_what_cannot_be_used_is_refused_when_it_is_given(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        RedisStateStore(make_settings(**options))
    assert "pw" not in str(refused.value)


def test_a_provider_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_CREDENTIALS", f"{__name__}:fails")
    assert RedisStateStore(Settings()).settings.credentials == f"{__name__}:fails"
