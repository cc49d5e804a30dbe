"""Connections over TLS share what they load of certificates, until a file changes."""

from __future__ import annotations

import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.exceptions import ConnectionError  # noqa: A004

from redis_state import RedisStateStore, Settings
from redis_state.transport.connections.address import Address
from tests.support.servers.faults import Proxy, certificate, tls_server_context

CONNECTIONS = 40
_CLIENT = ssl.PROTOCOL_TLS_CLIENT


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """Collect the contexts that are loaded with the system's certificates."""
    made: list[ssl.SSLContext] = []
    load = ssl.create_default_context

    def counted(*args: Any, **options: Any) -> ssl.SSLContext:
        made.append(load(*args, **options))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    return made


async def answered(url: str) -> None:
    """Connect, ask once, and close. Errors: redis-py's."""
    connection = Address.parse(url).connection(connect_timeout_s=30)
    await connection.connect()
    try:
        await connection.send_packed_command(connection.pack_command("PING"))
        assert await connection.read_response() in {b"PONG", "PONG"}
    finally:
        await connection.disconnect()


def url_of(proxy: Proxy, cert: Path, more: str = "") -> str:
    return f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={cert}{more}"


async def test_certificates_are_loaded_once_for_all_connections_with_the_same_options(
    settings: Settings, tmp_path: Path, loads: list[ssl.SSLContext]
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    async with Proxy(settings.url.get_secret_value(), tls=tls_server_context(cert, key)) as proxy:
        for _ in range(CONNECTIONS):
            await answered(url_of(proxy, cert))
        assert len(loads) == 1
        # What checks less shares nothing with what checks all.
        await answered(url_of(proxy, cert, "&ssl_cert_reqs=none"))
        await answered(url_of(proxy, cert))
    assert [context.verify_mode for context in loads] == [ssl.CERT_REQUIRED, ssl.CERT_NONE]


async def test_a_renewed_certificate_is_read_by_the_next_connection(
    settings: Settings, tmp_path: Path, loads: list[ssl.SSLContext]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    trusted = tmp_path / "trusted.pem"
    server = settings.url.get_secret_value()
    cert, key = certificate(old, "IP:127.0.0.1")
    trusted.write_bytes(cert.read_bytes())
    async with Proxy(server, tls=tls_server_context(cert, key)) as proxy:
        await answered(url_of(proxy, trusted))
    renewed, key = certificate(new, "IP:127.0.0.1")
    async with Proxy(server, tls=tls_server_context(renewed, key)) as proxy:
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await answered(url_of(proxy, trusted))
        trusted.write_bytes(renewed.read_bytes())
        await answered(url_of(proxy, trusted))
    assert len(loads) == 2


async def test_a_store_names_a_file_that_went_away_after_it_had_connected(
    settings: Settings, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(cert.read_bytes())
    async with Proxy(settings.url.get_secret_value(), tls=tls_server_context(cert, key)) as proxy:
        url = url_of(proxy, trusted)
        async with RedisStateStore(settings.model_copy(update={"url": SecretStr(url)})) as store:
            await store.save_memory_state("user", {"known": 1})
        await answered(url)
        trusted.unlink()
        with pytest.raises(ConnectionError, match="No such file"):
            await answered(url)
        trusted.write_bytes(cert.read_bytes())
        await answered(url)


def test_threads_that_share_contexts_of_more_kinds_than_are_kept_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is tried is who shares them. To load the system's certificates each time takes too long.
    monkeypatch.setattr(ssl, "create_default_context", lambda: ssl.SSLContext(_CLIENT))
    urls = [f"rediss://127.0.0.1/0?ssl_ciphers=DEFAULT:!K{n}" for n in range(40)]
    wrong: list[Exception] = []

    def connect(first: int) -> None:
        try:
            for n in range(400):
                made: Any = Address.parse(urls[(first + n) % 40]).connection(connect_timeout_s=1)
                made._connection_arguments()
        except Exception as error:  # noqa: BLE001 - whatever it is
            wrong.append(error)

    threads = [threading.Thread(target=connect, args=(7 * n,)) for n in range(8)]
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(often)
    assert wrong == []
