"""Server addresses: what is read, what is refused, and what is never shown."""

from __future__ import annotations

import ssl
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from redis.asyncio.connection import SSLConnection

from redis_state import Settings
from redis_state.errors import ConfigError
from redis_state.transport.connections.address import Address

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "display", "options"),
    [
        ("redis://", "redis://localhost:6379/0", {"host": "localhost", "port": 6379}),
        ("redis://h", "redis://h:6379/0", {"host": "h", "port": 6379}),
        ("redis://h:1/", "redis://h:1/0", {"host": "h", "port": 1}),
        ("redis://h:65535/15", "redis://h:65535/15", {"host": "h", "port": 65535, "db": 15}),
        ("REDIS://h", "redis://h:6379/0", {"host": "h", "port": 6379}),
        ("redis://[::1]:7/2", "redis://[::1]:7/2", {"host": "::1", "port": 7, "db": 2}),
        ("redis://h?db=3", "redis://h:6379/3", {"host": "h", "port": 6379, "db": 3}),
        ("redis://h/1?db=3", "redis://h:6379/3", {"host": "h", "port": 6379, "db": 3}),
        (
            "redis://me:s3cret@h/1?client_name=a%20b",
            "redis://h:6379/1",
            {
                "host": "h",
                "port": 6379,
                "db": 1,
                "username": "me",
                "password": SECRET,
                "client_name": "a b",
            },
        ),
        ("redis://:@h", "redis://h:6379/0", {"host": "h", "port": 6379}),
        (
            "redis://:a%2Fb%23c%3Fd%40e%25f%3Ag%20h+i@h",
            "redis://h:6379/0",
            {"host": "h", "port": 6379, "password": "a/b#c?d@e%f:g h+i"},
        ),
        (
            "redis://:a[b]@[::1]",
            "redis://[::1]:6379/0",
            {"host": "::1", "port": 6379, "password": "a[b]"},
        ),
        ("unix:///run/r.sock", "unix:///run/r.sock", {"path": "/run/r.sock"}),
        (
            "unix://me:s3cret@/run/a%20b@c.sock?db=2",
            "unix:///run/a%20b@c.sock?db=2",
            {"path": "/run/a b@c.sock", "username": "me", "password": SECRET, "db": 2},
        ),
        (
            "unix:///r.sock?password=s3cret",
            "unix:///r.sock",
            {"path": "/r.sock", "password": SECRET},
        ),
        ("unix:///r%FF.sock", "unix:///r%FF.sock", {"path": "/r\udcff.sock"}),
    ],
)
def test_address_is_read_and_shown_without_who_logs_in(
    url: str, display: str, options: dict[str, Any]
) -> None:
    address = Address.parse(url)
    assert str(address) == display
    assert address.options == options
    assert SECRET not in repr(address)
    connection = address.connection(connect_timeout_s=1)
    assert SECRET not in repr(connection)


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("embedded://", None),
        ("embedded:///var/data", Path("/var/data")),
        ("embedded:///a%20b", Path("/a b")),
        ("embedded://data/x", Path("data/x").absolute()),
        ("embedded://~/x", Path.home() / "x"),
    ],
)
def test_embedded_address_names_a_directory_or_none(url: str, directory: Path | None) -> None:
    address = Address.parse(url)
    assert address.directory == directory
    assert str(address) == url


def test_address_of_a_set_names_its_servers_and_the_logins_of_each_kind() -> None:
    address = Address.parse(
        "rediss+sentinel://me:s3cret@a,b:7,[::1]:8,a:26379/the%20one/3"
        "?sentinel_username=other&sentinel_password=s3cret2&ssl_ca_certs=/ca&ssl_server_name=n"
    )
    assert str(address) == "rediss+sentinel://a:26379,b:7,[::1]:8/the one/3"
    assert address.service == "the one"
    assert SECRET not in repr(address)
    first, *_, last = address.sentinels()
    assert (first.options["host"], first.options["port"]) == ("a", 26379)
    assert (last.options["host"], last.options["port"]) == ("::1", 8)
    assert (last.options["username"], last.options["password"]) == ("other", "s3cret2")
    primary = address.server(("p", 1), primary_only=True)
    assert str(primary) == "rediss://p:1/3"
    assert (primary.options["username"], primary.options["password"]) == ("me", SECRET)
    assert "sentinel_password" not in primary.options
    cluster = Address.parse("redis+cluster://me:s3cret@a,b:7/0")
    assert str(cluster) == "redis+cluster://a:6379,b:7"
    assert cluster.endpoints == (("a", 6379), ("b", 7))
    assert cluster.server(("c", 1)).options["password"] == SECRET
    for each in (first, primary):
        assert each.options["ssl_server_name"] == "n"
        assert each.options["ssl_ca_certs"] == "/ca"
        assert isinstance(each.connection(connect_timeout_s=1), SSLConnection)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("", "unknown scheme ''"),
        ("localhost:6379", "unknown scheme ''"),
        ("http://h", "unknown scheme 'http'"),
        ("redis://a..b", "no name of a host"),
        ("redis+cluster://h,.b:1", "no name of a host"),
        ("embedded://~nobody-of-this-name/x", "home of a user"),
        ("redis:h", "unknown scheme ''"),
        ("redis+sentinel://h", "needs the name of the primary"),
        ("redis+sentinel:///m", "must name its hosts"),
        ("redis+sentinel://h,/m", "must name its hosts"),
        ("redis+sentinel://h,[::1/m", "brackets"),
        ("redis+sentinel://h,g:x/m", "port"),
        ("redis+sentinel://h/m/x", "^db in"),
        ("redis+sentinel://h/m?ssl_server_name=n", "unknown option 'ssl_server_name'"),
        ("redis+cluster://h/1", "database 0 only"),
        ("redis+cluster://h,", "must name its hosts"),
        ("redis+cluster://h?db=x", "^db in"),
        ("redis://h:0", "port"),
        ("redis://h:65536", "port"),
        ("redis://h:-1", "port"),
        ("redis://h:x", "port"),
        ("redis://[::1", "brackets"),
        ("redis://h/x", "^db in"),
        ("redis://h/-1", "^db in"),
        ("redis://h/1/2", "^db in"),
        ("redis://h/\u0663", "^db in"),
        ("redis://h?db=", "^db in"),
        ("redis://h?db=1e3", "^db in"),
        ("redis://h?socket_timeout=5", "unknown option 'socket_timeout'"),
        ("redis://h?ssl_cert_reqs=none", "unknown option 'ssl_cert_reqs'"),
        ("rediss://h?ssl_cert_reqs=maybe", "^ssl_cert_reqs in"),
        ("rediss://h?ssl_check_hostname=maybe", "^ssl_check_hostname in"),
        ("rediss://h?ssl_min_version=1", "^ssl_min_version in"),
        ("rediss://h?ssl_min_version=TLSv9", "^ssl_min_version in"),
        ("unix://run/r.sock", "absolute path"),
        ("unix://", "absolute path"),
        ("unix:///", "absolute path"),
        ("embedded://me@/x", "directory and nothing else"),
        ("embedded:///x?db=1", "directory and nothing else"),
        ("redis://h\n", "must be percent-encoded"),
        ("redis://:\udcff@h", "must be percent-encoded"),
        # Pieces of a password that was not encoded end up in the wrong place.
        ("redis://:s3cret/x@h/0", "percent-encode"),
        ("redis://:12/s3cret@h:6379/0", "percent-encode"),
        ("redis://:12#s3cret@h", "percent-encode"),
        ("redis://:12?s3cret@h", "percent-encode"),
        ("redis://:12?s3cret=1@h", "percent-encode"),
        ("redis://:s3cret:x", "port"),
        ("redis://:s3cret@h:x", "port"),
        ("redis://:s3cret@h/x", "^db in"),
        ("redis://h?password=x&s3cret=1", "an unknown option"),
        ("redis+sentinel://h/m?sentinel_password=x&s3cret", "percent-encode &"),
        ("redis+sentinel://h/m?sentinel_password=s3cret+x", "^sentinel_password in .*%2B"),
        ("redis://:s3cret%FF@h", "^password in"),
        ("redis://h?password=s3cret%FF", "^password in"),
        ("redis+sentinel://:s3cret@g:1,:s3cret@h:2/m", "before the first host"),
        ("redis+cluster://:s3cret[x@[::1", "brackets"),
        ("unix://:s3cret/x@/run", "absolute path"),
        ("s3cret", "unknown scheme ''"),
    ],
)
def test_unusable_address_is_a_config_error_that_tells_no_secret(url: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        Address.parse(url)
    shown = "".join(traceback.format_exception(caught.value)).replace(repr(url), "")
    assert SECRET not in shown
    assert caught.value.__context__ is None


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_an_address_or_a_config_error(before: str, after: str) -> None:
    for scheme in ("redis", "rediss", "unix", "embedded"):
        try:
            address = Address.parse(f"{scheme}://{before}:{SECRET}@{after}")
        except ConfigError:
            continue
        assert scheme == "unix" or f":{SECRET}@" not in str(address)
        address.connection(connect_timeout_s=1)


def test_tls_is_checked_alike_by_every_version_of_the_client() -> None:
    def made(query: str) -> SSLConnection:
        connection = Address.parse(f"rediss://h{query}").connection(connect_timeout_s=1)
        assert isinstance(connection, SSLConnection)
        return connection

    assert made("").check_hostname
    assert made("").cert_reqs == ssl.CERT_REQUIRED
    assert not made("?ssl_check_hostname=false").check_hostname
    assert not made("?ssl_cert_reqs=none&ssl_check_hostname=true").check_hostname
    assert made("?ssl_min_version=TLSv1_3").min_version == ssl.TLSVersion.TLSv1_3
    assert made("?ssl_min_version=771").min_version == ssl.TLSVersion.TLSv1_2
    both = made("?ssl_certfile=/c.pem")
    assert (both.certfile, both.keyfile) == ("/c.pem", "/c.pem")
    apart = made("?ssl_certfile=/c.pem&ssl_keyfile=/k.pem")
    assert (apart.certfile, apart.keyfile) == ("/c.pem", "/k.pem")


def test_arqs_own_runner_is_refused_a_set_of_servers() -> None:
    pytest.importorskip("arq", reason="needs the worker extra")
    worker = pytest.importorskip("redis_state.worker", reason="needs the worker extra")
    for url in ("redis+sentinel://:s3cret@h/m", "redis+cluster://:s3cret@h"):
        settings = Settings(url=SecretStr(url))
        with pytest.raises(ConfigError, match="arq's own runner cannot follow") as refused:
            worker.AgentWorker({}, settings=settings).arq_settings()
        assert SECRET not in str(refused.value)
