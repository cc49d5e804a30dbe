"""Where a password comes from: providers, files, and what is none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.credentials import CredentialProvider

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.settings import Credentials, make_settings
from redis_state.testing import eventually
from redis_state.transport.connections import login
from tests.support.samples import update as make_update
from tests.support.servers.changes.credentials import (
    USER,
    Vault,
    rotating_server,
    settings_of,
)
from tests.support.servers.faults import sender_to
from tests.support.timing import LONG_S


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
    async with rotating_server() as (url, vault):
        address = url.replace("unix://", f"unix://{USER}@") if kind is RedisPysPlain else url
        async with RedisStateStore(settings_of(address, kind(vault))) as store:
            await store.save_update(make_update("u0"))
            await vault.rotate()
            assert await vault.cut()
            await store.save_update(make_update("u1"))
            assert len((await store.read_updates("session")).values) == 2


@pytest.mark.server
async def test_a_password_file_is_replaced_as_kubernetes_does(tmp_path: Path) -> None:
    async with rotating_server() as (url, vault):

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
    async with rotating_server() as (url, vault):
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


@pytest.mark.server
async def test_a_provider_is_not_called_for_each_connection_that_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(login, "_AGAIN_S", LONG_S)
    async with rotating_server() as (url, _), sender_to(url) as admin:
        vault = Vault(valid_s=LONG_S)  # of no server
        vault.made = 7
        patient = {"call_timeout_s": LONG_S, "connect_timeout_s": LONG_S}

        async def is_refused_often() -> bool:
            stated: bytes = await admin.send("INFO", "errorstats", repeatable=True)
            found = stated.partition(b"errorstat_WRONGPASS:count=")[2].split()
            return bool(found) and int(found[0]) > 5

        async with RedisStateStore(settings_of(url, vault, **patient)) as store:
            waiting = asyncio.ensure_future(store.load_memory_state("k"))
            await eventually(is_refused_often, "it is tried again and again")
            assert vault.given == 2
            waiting.cancel()


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
    async with rotating_server() as (url, _):
        settings = settings_of(url, provider, call_timeout_s=4.0, connect_timeout_s=1.0)
        async with RedisStateStore(settings) as store:
            with pytest.raises(BackendUnavailable, match=says) as refused:
                await store.save_update(make_update("u"))
        assert "secret-text" not in str(refused.value) + caplog.text + repr(settings)


@pytest.mark.server
async def test_a_provider_that_does_not_end_when_it_is_cancelled_holds_nobody_up() -> None:
    async with rotating_server() as (url, vault):
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
    async with rotating_server() as (url, _):
        settings = make_settings(url, password_file=path, call_timeout_s=0.3)
        async with RedisStateStore(settings) as store:
            with pytest.raises(BackendUnavailable, match=says) as refused:
                await store.save_update(make_update("u"))
            assert str(path) in str(refused.value)


@pytest.mark.server
async def test_a_password_file_that_nobody_writes_to_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    os.mkfifo(path)
    async with rotating_server() as (url, _):
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
