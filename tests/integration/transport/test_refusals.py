"""What cannot be helped by trying again is told at once, with what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.hashes import SHA256
from pydantic import SecretStr

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    NoConnection,
    RedisStateError,
)
from redis_state.testing import eventually
from tests.integration.transport.test_subscriber import subscriber_to
from tests.support.processes import children
from tests.support.samples import task as make_task
from tests.support.samples import update as make_update
from tests.support.servers.choice import on_path
from tests.support.servers.faults import (
    Proxy,
    certificate,
    own_binary,
    sender_to,
    tls_server_context,
)
from tests.support.servers.ports import listens
from tests.support.timing import spending

SECRET = "s3cret"
# Far less than a call's five seconds.
AT_ONCE_S = 1.5


@asynccontextmanager
async def running(
    port: int, folder: Path, *options: str, binary: str | Path | None = None
) -> AsyncGenerator[None]:
    """Run a server, or whatever kind it is, that listens on a port."""
    server = await children.start(
        str(binary or own_binary()),
        *options,
        *("--dir", str(folder), "--bind", "127.0.0.1"),
        stdout=asyncio.subprocess.DEVNULL,
    )

    try:
        await eventually(lambda: server.returncode is not None or listens(port), "it listens")
        if server.returncode is not None:
            pytest.skip("this server cannot be run like that")
        yield
    finally:
        await children.end(server)


async def reported(url: str) -> NoConnection:
    """Call and subscribe; both are told the same, at once, and without the password."""
    async with spending() as spent, sender_to(url) as sender, subscriber_to(url) as subscriber:
        with pytest.raises(NoConnection) as called:
            await sender.send("GET", "x", repeatable=True)
        with pytest.raises(NoConnection) as listened:
            await subscriber.subscribe("channel").next()
    assert spent.s < AT_ONCE_S
    assert type(called.value) is type(listened.value)
    assert str(called.value) == str(listened.value)
    assert called.value.final
    assert SECRET not in str(called.value)
    return called.value


async def test_a_watcher_does_not_wait_for_what_cannot_change(own_url: str) -> None:
    async with Proxy(own_url) as proxy:
        wrong = proxy.url.rpartition("/")[0] + "/9999"
        async with RedisStateStore.from_url(wrong) as store, spending() as spent:
            with pytest.raises(BackendUnavailable, match="out of range") as watched:
                await anext(store.watch_updates("session"))
    assert watched.value.final
    assert spent.s < AT_ONCE_S


async def test_a_wrong_password_is_an_error_of_its_own(own_url: str) -> None:
    async with sender_to(own_url) as admin:
        await admin.send("CONFIG", "SET", "requirepass", "right", repeatable=True)
    async with Proxy(own_url) as proxy:
        wrong = await reported(f"redis://:{SECRET}@127.0.0.1:{proxy.port}/0")
        missing = await reported(proxy.url)
        assert proxy.url in str(wrong)
    assert type(wrong) is type(missing) is AuthenticationFailed
    assert "the user or the password is refused" in str(wrong)
    assert "Authentication required" in str(missing)


@pytest.fixture
async def sentinel(unused_tcp_port: int, tmp_path: Path) -> AsyncIterator[int]:
    file = tmp_path / "sentinel.conf"
    file.write_text(f"port {unused_tcp_port}\n")
    if on_path() is None:
        pytest.skip("the embedded server is no Sentinel")
    async with running(unused_tcp_port, tmp_path, str(file), "--sentinel", binary=on_path()):
        yield unused_tcp_port


async def test_a_sentinel_is_named_as_such(sentinel: int) -> None:
    assert "a Redis Sentinel" in str(await reported(f"redis://127.0.0.1:{sentinel}/0"))
    assert "Sentinel" in str(await reported(f"redis://127.0.0.1:{sentinel}/1"))


async def test_a_server_that_is_too_old_is_named_by_its_version(own_url: str) -> None:
    told_version = re.compile(rb"(\$7\r\nversion\r\n)\$\d+\r\n[\d.]+\r\n")
    async with Proxy(own_url) as proxy:
        proxy.change(lambda data: told_version.sub(rb"\1$6\r\n6.2.14\r\n", data))
        error = await reported(proxy.url)
        assert proxy.changed
    assert "this is Redis 6.2.14: Redis 7.0 or later is needed" in str(error)


async def test_a_user_without_a_right_to_ask_for_the_version_can_work(own_url: str) -> None:
    async with sender_to(own_url) as admin:
        rules = ("on", ">pw", "~*", "-@all", "+get")
        await admin.send("ACL", "SETUSER", "narrow", *rules, repeatable=True)
    async with sender_to(own_url.replace("unix://", "unix://narrow:pw@")) as sender:
        assert await sender.send("GET", "x", repeatable=True) is None


async def test_a_node_of_a_cluster_is_named_as_such(unused_tcp_port: int, tmp_path: Path) -> None:
    port = unused_tcp_port
    options = ("--port", str(port), "--cluster-enabled", "yes")
    url = f"redis://127.0.0.1:{port}/0"
    async with (
        running(port, tmp_path, *options),
        sender_to(url, call_timeout_s=2, connect_timeout_s=60) as sender,
    ):
        # Until then nobody refuses anything.
        await sender.send("PING", repeatable=True, timeout_s=60.0)
        with pytest.raises(BackendUnavailable, match="CLUSTERDOWN"):
            await sender.send("GET", "x", repeatable=True)
        moved = "return redis.error_reply('MOVED 16287 10.0.0.1:6379')"
        with pytest.raises(CommandRefused, match="node of a Redis Cluster") as refused:
            await sender.send("EVAL", moved, 0, repeatable=True)
        assert "10.0.0.1" not in str(refused.value)


def tls_options(port: int, cert: Path, key: Path, *, clients: str = "no") -> list[str]:
    files = ["--tls-cert-file", str(cert), "--tls-key-file", str(key)]
    return [
        *("--port", "0", "--tls-port", str(port), *files),
        *("--tls-ca-cert-file", str(cert), "--tls-auth-clients", clients),
    ]


def expired(folder: Path) -> tuple[Path, Path]:
    """Make a certificate that was good yesterday."""
    cert, key = certificate(folder, "IP:127.0.0.1")
    secret: Any = serialization.load_pem_private_key(key.read_bytes(), None)
    good = x509.load_pem_x509_certificate(cert.read_bytes())
    until = datetime.now(UTC) - timedelta(days=1)
    old = (
        x509.CertificateBuilder()
        .subject_name(good.subject)
        .issuer_name(good.subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - timedelta(days=1))
        .not_valid_after(until)
    )
    for extension in good.extensions:
        old = old.add_extension(extension.value, critical=extension.critical)
    cert.write_bytes(old.sign(secret, SHA256()).public_bytes(serialization.Encoding.PEM))
    return cert, key


CertificateOf = Callable[[Path], tuple[Path, Path]]


def of_this_host(folder: Path) -> tuple[Path, Path]:
    return certificate(folder, "IP:127.0.0.1")


def of_another_host(folder: Path) -> tuple[Path, Path]:
    return certificate(folder, "DNS:other")


@pytest.mark.parametrize(
    ("make", "query", "says"),
    [
        (of_this_host, "", ("self-signed", "ssl_ca_certs must name")),
        (of_another_host, "?ssl_ca_certs={cert}", ("mismatch", "the URL must name")),
        (expired, "?ssl_ca_certs={cert}", ("expired", "needs a new one")),
    ],
    ids=["unknown authority", "another host", "expired"],
)
async def test_a_certificate_that_is_refused_is_told_at_once(
    unused_tcp_port: int, tmp_path: Path, make: CertificateOf, query: str, says: tuple[str, str]
) -> None:
    cert, key = make(tmp_path)
    options = tls_options(unused_tcp_port, cert, key)
    async with running(unused_tcp_port, tmp_path, *options, binary=on_path()):
        error = await reported(f"rediss://127.0.0.1:{unused_tcp_port}/0{query.format(cert=cert)}")
    assert type(error) is BackendUnavailable
    assert "certificate verify failed" in str(error)
    assert all(part in str(error) for part in says)


async def test_a_missing_client_certificate_is_told_at_once(
    unused_tcp_port: int, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    options = tls_options(unused_tcp_port, cert, key, clients="yes")
    url = f"rediss://127.0.0.1:{unused_tcp_port}/0?ssl_ca_certs={cert}"
    async with running(unused_tcp_port, tmp_path, *options, binary=on_path()):
        assert "ssl_certfile" in str(await reported(url))
        plain = await reported(f"redis://127.0.0.1:{unused_tcp_port}/0")
        assert "rediss://" in str(plain)
        async with sender_to(f"{url}&ssl_certfile={cert}&ssl_keyfile={key}") as sender:
            assert await sender.send("ECHO", "in", repeatable=True) == b"in"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("ssl_ca_certs=/nonexistent", "ssl_ca_certs: /nonexistent cannot be read: No such"),
        ("ssl_certfile=/nonexistent", "ssl_certfile: /nonexistent cannot be read: No such"),
        ("ssl_ca_certs={key}", "ssl_ca_certs cannot be used: "),
        ("ssl_certfile={key}", "ssl_certfile, ssl_keyfile cannot be used: "),
        ("ssl_ca_data=x", "ssl_ca_data cannot be used: "),
        ("ssl_ciphers=NONE", "ssl_ciphers cannot be used: "),
    ],
)
async def test_an_option_of_tls_that_cannot_be_used_is_named(
    own_url: str, tmp_path: Path, query: str, says: str
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    async with Proxy(own_url, tls=tls_server_context(cert, key)) as proxy:
        url = SecretStr(f"rediss://127.0.0.1:{proxy.port}/0?{query.format(key=key)}")
        async with RedisStateStore(Settings(url=url, call_timeout_s=1)) as store:
            with pytest.raises(BackendUnavailable) as failed:
                await store.list_tasks("s")
    assert says in str(failed.value)
    # A file may be there in a moment.
    assert failed.value.final == ("No such" not in says)


async def test_a_plain_url_on_a_tls_port_is_told_at_once(
    unused_tcp_port: int, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    options = tls_options(unused_tcp_port, cert, key)
    async with running(unused_tcp_port, tmp_path, *options, binary=on_path()):
        error = await reported(f"redis://:{SECRET}@127.0.0.1:{unused_tcp_port}/0")
    assert "this port speaks TLS: write rediss://" in str(error)


async def test_a_server_that_hangs_up_is_not_taken_for_one_that_speaks_tls(
    own_url: str,
) -> None:
    async with Proxy(own_url) as proxy, sender_to(proxy.url) as sender:
        proxy.refuse()
        call = sender.send("ECHO", "in", repeatable=True)
        await eventually(lambda: proxy.refused > 3, "it hung up several times")
        assert not call.done()
        proxy.refuse(refusing=False)
        assert await call == b"in"


async def test_a_port_of_another_service_is_named_as_such(unused_tcp_port: int) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", unused_tcp_port)
    async with server:
        url = SecretStr(f"redis://:{SECRET}@127.0.0.1:{unused_tcp_port}/0")
        async with RedisStateStore(Settings(url=url, call_timeout_s=1)) as store:
            problem = (await store.health()).problem
    assert problem is not None
    assert "is no Redis, but another service" in problem
    assert SECRET not in problem


async def refusal(store: RedisStateStore, call: Callable[[RedisStateStore], Any]) -> str:
    with pytest.raises(RedisStateError) as refused:
        await call(store)
    assert type(refused.value) is CommandRefused
    assert not re.search(r"[0-9a-f]{40}", str(refused.value))
    return str(refused.value)


async def test_a_missing_right_names_the_command_that_was_refused(own_url: str) -> None:
    async with sender_to(own_url) as admin:

        async def may(*rules: str) -> RedisStateStore:
            user = ("RESET", "on", ">pw", "~rs:*", "&rs:*", "+@all", *rules)
            await admin.send("ACL", "SETUSER", "narrow", *user, repeatable=True)
            url = SecretStr(own_url.replace("unix://", "unix://narrow:pw@"))
            return RedisStateStore(Settings(url=url))

        async with await may("-hgetall") as store:
            text = await refusal(store, lambda store: store.load_memory_state("key"))
            assert "not permitted: HGETALL:" in text
        async with await may("-eval", "-evalsha") as store:
            text = await refusal(store, lambda store: store.save_update(make_update("u")))
            assert "EVAL in the script append_log" in text
        async with await may("-xadd") as store:
            text = await refusal(store, lambda store: store.save_update(make_update("u")))
            # The error is caught and raised again: Redis loses the command, Valkey does not.
            assert re.search(r"(one of .*)?XADD.* in the script append_log", text)
        async with await may("-zadd") as store:
            text = await refusal(store, lambda store: store.save_task(make_task("t")))
            assert "ZADD in the script save_task" in text
        async with await may("resetkeys", "~other:*") as store:
            text = await refusal(store, lambda store: store.save_update(make_update("u")))
            assert "in the script append_log" in text
            assert "access a key" in text or "keys" in text


@pytest.mark.parametrize("form", ["PKCS8", "TraditionalOpenSSL"])
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("rediss://{}/0", ConfigError),
        ("rediss+sentinel://{}/name/0", ConfigError),
        ("rediss+cluster://{}", BackendUnavailable),
    ],
)
async def test_a_key_that_needs_a_password_is_refused_and_nobody_is_asked_for_it(
    tmp_path: Path, unused_tcp_port: int, form: str, place: str, kind: type[Exception]
) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    secret: Any = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            getattr(serialization.PrivateFormat, form),
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    url = f"{place}?ssl_certfile={cert}&ssl_keyfile={key}".format(f"127.0.0.1:{unused_tcp_port}")
    async with RedisStateStore.from_url(url) as opened:
        with pytest.raises(kind, match="ssl_keyfile: its key is encrypted"):
            await opened.list_tasks("s")
