"""Where the server is: one URL, read once, shown without its passwords.

A URL names one server, or a set of servers: the Sentinels of a primary, or nodes of a cluster.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, unquote, urlsplit

from redis.asyncio.connection import Connection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from redis_state.errors import ConfigError
from redis_state.transport.connections.login import Login
from redis_state.transport.connections.tls import TlsConnection

_SENTINEL_PORT = 26379
_PORT = 6379

Endpoint = tuple[str, int]


class RedisConnection(Protocol):
    """What connecting uses of a redis-py connection: alike in 5.3 and in 8."""

    async def connect(self) -> None:
        """Connect, authenticate, select the database."""

    async def disconnect(self, nowait: bool = ...) -> None:  # noqa: FBT001
        """Close."""

    def pack_command(self, *args: str | bytes | int) -> list[bytes]:
        """Write a command as bytes."""
        ...

    async def send_packed_command(
        self,
        command: Iterable[bytes],
        check_health: bool = ...,  # noqa: FBT001
    ) -> None:
        """Send what was packed."""

    async def read_response(self) -> Any:
        """Read the next reply; an error reply is raised."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server, or of a set. ``str()`` and ``repr()`` never show a password.

    ``options`` are named as redis-py names them. A set has ``endpoints``, which know where to
    connect. ``service`` is the name of a primary that Sentinels watch, ``sentinel_options`` are
    those of connections to them. ``primary_only``: a replica is of no use. ``login`` has the
    credentials, if they may change.
    """

    scheme: str
    display: str
    options: dict[str, Any] = field(repr=False, default_factory=dict[str, Any])
    directory: Path | None = None
    endpoints: tuple[Endpoint, ...] = ()
    service: str = ""
    sentinel_options: dict[str, Any] = field(repr=False, default_factory=dict[str, Any])
    primary_only: bool = False
    login: Login | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL: of one server, of the Sentinels of one, or of an embedded one.

        Errors: ConfigError for a scheme or a part that cannot be used. The part is not shown if it
        could belong to a password that should have been percent-encoded.
        """
        scheme = url.partition("://")[0].lower() if "://" in url else ""
        if scheme not in _READERS:
            raise ConfigError(
                f"unknown scheme {scheme!r} in the server URL: use one of "
                + ", ".join(f"{name}://" for name in _READERS)
            )
        if any(character <= " " or "\ud800" <= character <= "\udfff" for character in url):
            raise ConfigError("the server URL has characters that must be percent-encoded")
        parts = _split(url)
        if "#" in url or "@" in parts.query or (scheme != "unix" and "@" in parts.path):
            raise ConfigError(
                "the server URL cannot be read: percent-encode / ? # and @ in its password"
            )
        return _READERS[scheme](scheme, parts)

    def __str__(self) -> str:
        return self.display

    @property
    def is_cluster(self) -> bool:
        """Whether it is that of a cluster."""
        return self.scheme.endswith("+cluster")

    def with_login(self, login: Login | None) -> Address:
        """Return the address with credentials that may change. Errors: ConfigError."""
        if login is None:
            return self
        if self.scheme == "embedded":
            raise ConfigError("an embedded server has no credentials")
        if "password" in self.options:
            raise ConfigError("the server URL has a password, and credentials are given too")
        return replace(self, login=login)

    def server(self, endpoint: Endpoint, *, primary_only: bool = False) -> Address:
        """Return the address of one server of a set, with the set's options."""
        return self._of(endpoint, self.options, primary_only=primary_only).with_login(self.login)

    def sentinels(self) -> list[Address]:
        """Return the addresses of the Sentinels, with the options of connections to them."""
        return [self._of(endpoint, self.sentinel_options) for endpoint in self.endpoints]

    def _of(
        self, endpoint: Endpoint, options: dict[str, Any], *, primary_only: bool = False
    ) -> Address:
        host, port = endpoint
        scheme = self.scheme.partition("+")[0]
        return Address(
            scheme,
            f"{scheme}://{_shown(endpoint)}/{options.get('db', 0)}",
            {**options, "host": host, "port": port},
            primary_only=primary_only,
        )

    def connection(self, *, connect_timeout_s: float) -> RedisConnection:
        """Make a redis-py connection that is not connected yet.

        Reads have no timeout of their own: the sender keeps one deadline per call, and a
        timeout per read costs twice the CPU. Retries are the sender's too.
        """
        options = dict(self.options)
        if self.login is not None:
            options["credential_provider"] = self.login.for_redis_py(options.pop("username", None))
        if self.scheme != "unix":
            options["socket_keepalive"] = True
        connection = _KINDS[self.scheme](
            **options,
            socket_timeout=None,
            socket_connect_timeout=connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            health_check_interval=0,
        )
        announce_nothing(connection)
        return cast("RedisConnection", connection)


def announce_nothing(connection: Any) -> None:
    """Keep redis-py from naming itself to the server: not every user may, and nothing needs it."""
    # Of 5.3, and of 8.
    connection.lib_name = connection.lib_version = connection.driver_info = None


_KINDS: dict[str, Callable[..., Any]] = {
    "redis": Connection,
    "rediss": TlsConnection,
    "unix": UnixDomainSocketConnection,
}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
        text.lower()
    ]


def _requirement(text: str) -> str:
    if text not in {"none", "optional", "required"}:
        raise ValueError
    return text


def _tls_version(text: str) -> ssl.TLSVersion:
    return ssl.TLSVersion(int(text)) if text.isdigit() else ssl.TLSVersion[text]


_Readers = dict[str, Callable[[str], Any]]
_PLAIN: _Readers = {"db": _number, "username": str, "password": str, "client_name": str}
_TLS: _Readers = {
    "ssl_keyfile": str,
    "ssl_certfile": str,
    "ssl_ca_certs": str,
    "ssl_ca_data": str,
    "ssl_cert_reqs": _requirement,
    "ssl_check_hostname": _flag,
    "ssl_min_version": _tls_version,
    "ssl_ciphers": str,
    "ssl_server_name": str,
}
_SENTINEL: _Readers = {"sentinel_username": str, "sentinel_password": str}
_SENTINEL_PREFIX = "sentinel_"
_PASSWORDS = {"password", "sentinel_password"}


def _split(url: str) -> SplitResult:
    """Split a URL. Its hosts and its login are left as they are: `urlsplit` knows one host only.

    A password may have brackets, and a set hosts of both kinds.
    """
    start = url.index("://") + len("://")
    end = min((at for sign in "/?#" if (at := url.find(sign, start)) >= 0), default=len(url))
    return urlsplit(url[:start] + url[end:])._replace(netloc=url[start:end])


def _read_tcp(scheme: str, parts: SplitResult) -> Address:
    options = _options(scheme, parts, {})
    endpoint = _endpoint(parts.netloc.rpartition("@")[2], _PORT)
    database = unquote(parts.path).strip("/")
    if database:
        options.setdefault("db", _option("db", database, _number))
    display = f"{scheme}://{_shown(endpoint)}/{options.get('db', 0)}"
    return Address(scheme, display, {"host": endpoint[0], "port": endpoint[1], **options})


def _read_sentinel(scheme: str, parts: SplitResult) -> Address:
    options = _options(scheme, parts, _SENTINEL)
    service, _, database = unquote(parts.path).strip("/").partition("/")
    if not service:
        raise ConfigError(
            f"{scheme}:// needs the name of the primary that the Sentinels watch: "
            f"{scheme}://host:26379,host:26379/mymaster"
        )
    if database:
        options.setdefault("db", _option("db", database, _number))
    sentinel_options = {name: options[name] for name in _TLS if name in options} | {
        name.removeprefix(_SENTINEL_PREFIX): options.pop(name)
        for name in _SENTINEL
        if name in options
    }
    endpoints = _endpoints(parts, _SENTINEL_PORT)
    shown = ",".join(map(_shown, endpoints))
    display = f"{scheme}://{shown}/{service}/{options.get('db', 0)}"
    return Address(
        scheme,
        display,
        options,
        endpoints=endpoints,
        service=service,
        sentinel_options=sentinel_options,
    )


def _read_cluster(scheme: str, parts: SplitResult) -> Address:
    options = _options(scheme, parts, {})
    database = unquote(parts.path).strip("/")
    if database:
        options.setdefault("db", _option("db", database, _number))
    if options.pop("db", 0):
        raise ConfigError("a cluster has database 0 only")
    endpoints = _endpoints(parts, _PORT)
    shown = ",".join(map(_shown, endpoints))
    return Address(scheme, f"{scheme}://{shown}", options, endpoints=endpoints)


def _options(scheme: str, parts: SplitResult, more: _Readers) -> dict[str, Any]:
    """Read the login and the query of a URL that leads over TCP."""
    encrypted = scheme.startswith("rediss")
    options = _login(parts) | _query(parts, _PLAIN | (_TLS if encrypted else {}) | more)
    if encrypted:
        # Alike in redis-py 5.3 and 8, whose defaults differ.
        checked = options.get("ssl_cert_reqs") != "none"
        options["ssl_check_hostname"] = options.get("ssl_check_hostname", True) and checked
        if "ssl_certfile" in options:
            options.setdefault("ssl_keyfile", options["ssl_certfile"])
    return options


def _endpoints(parts: SplitResult, default_port: int) -> tuple[Endpoint, ...]:
    """Read the hosts of a set, which commas separate."""
    login, _, hosts = parts.netloc.rpartition("@")
    named = hosts.split(",")
    if not all(named):
        raise ConfigError("the server URL must name its hosts: host:port,host:port")
    if "@" in login:
        # Else the hosts before it would be taken for a part of the password.
        raise ConfigError(
            "the server URL cannot be read: percent-encode @ in its password, and write the login "
            "once, before the first host"
        )
    return tuple(dict.fromkeys(_endpoint(each, default_port) for each in named))


def _endpoint(named: str, default_port: int) -> Endpoint:
    try:
        split = urlsplit(f"//{named}")
    except ValueError:
        split = None
    if split is None:
        raise ConfigError("the server URL cannot be read: check the brackets of its host")
    try:
        port = split.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(
            "the port in the server URL is no number from 1 to 65535 (or the password is not "
            "percent-encoded)"
        )
    host = unquote(split.hostname or "localhost")
    if not _may_be_resolved(host):
        raise ConfigError("the host in the server URL is no name of a host")
    return host, default_port if port is None else port


def _may_be_resolved(host: str) -> bool:
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def _shown(endpoint: Endpoint) -> str:
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_unix(scheme: str, parts: SplitResult) -> Address:
    if parts.netloc.rpartition("@")[2] or not parts.path.strip("/"):
        raise ConfigError("unix:// needs the absolute path of a socket: unix:///path/to/socket")
    options = _login(parts) | _query(parts, _PLAIN)
    database = f"?db={options['db']}" if "db" in options else ""
    path = unquote(parts.path, errors="surrogateescape")
    return Address(scheme, f"unix://{parts.path}{database}", {"path": path, **options})


def _read_embedded(scheme: str, parts: SplitResult) -> Address:
    if "@" in parts.netloc or parts.query:
        raise ConfigError("embedded:// takes the path of a directory and nothing else")
    path = parts.netloc + parts.path
    directory: Path | None = None
    with suppress(RuntimeError):
        directory = Path(unquote(path, errors="surrogateescape")).expanduser().absolute()
    if directory is None:
        raise ConfigError("embedded:// names the home of a user who has none")
    return Address(scheme, f"embedded://{path}", directory=directory if path else None)


_READERS = {
    "redis": _read_tcp,
    "rediss": _read_tcp,
    "redis+sentinel": _read_sentinel,
    "rediss+sentinel": _read_sentinel,
    "redis+cluster": _read_cluster,
    "rediss+cluster": _read_cluster,
    "unix": _read_unix,
    "embedded": _read_embedded,
}


def _login(parts: SplitResult) -> dict[str, Any]:
    given = {"username": parts.username, "password": parts.password}
    return {name: _option(name, text, _decoded) for name, text in given.items() if text}


def _query(parts: SplitResult, readers: _Readers) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, parts.query.split("&")):
        name, _, text = part.partition("=")
        if name not in readers:
            # It may be the end of the password.
            what = (
                "an unknown option" if _PASSWORDS & options.keys() else f"unknown option {name!r}"
            )
            raise ConfigError(
                f"{what} in the server URL: known are {', '.join(readers)}; "
                "percent-encode & in values"
            )
        if "+" in text:
            raise ConfigError(
                f"{name} in the server URL has a +, which may mean a space: write %2B or %20"
            )
        options[name] = _option(name, _option(name, text, _decoded), readers[name])
    return options


def _decoded(text: str) -> str:
    return unquote(text, errors="strict")


def _option(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError):
        pass
    raise ConfigError(f"{name} in the server URL has a value that cannot be used")
