"""Where the server is: one URL, read once, shown without its password."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from redis_state.errors import ConfigError

_PLANNED = ("redis+sentinel", "redis+cluster")


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
    """A server address. ``str()`` and ``repr()`` never show its password.

    ``options`` are named as redis-py names them.
    """

    scheme: str
    display: str
    options: dict[str, Any] = field(repr=False, default_factory=dict[str, Any])
    directory: Path | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a ``redis://``, ``rediss://``, ``unix://`` or ``embedded://[path]`` URL.

        Errors: ConfigError for a scheme or a part that cannot be used. The part is not shown if it
        could belong to a password that should have been percent-encoded.
        """
        scheme = url.partition("://")[0].lower() if "://" in url else ""
        if scheme in _PLANNED:
            raise ConfigError(f"{scheme}:// is not supported yet: name one server")
        if scheme not in _READERS:
            raise ConfigError(
                f"unknown scheme {scheme!r} in the server URL: use one of "
                + ", ".join(f"{name}://" for name in _READERS)
            )
        if any(character <= " " or "\ud800" <= character <= "\udfff" for character in url):
            raise ConfigError("the server URL has characters that must be percent-encoded")
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = None
        if parts is None:
            raise ConfigError("the server URL cannot be read: check the brackets of its host")
        if "#" in url or "@" in parts.query or (scheme != "unix" and "@" in parts.path):
            raise ConfigError(
                "the server URL cannot be read: percent-encode / ? # and @ in its password"
            )
        return _READERS[scheme](scheme, parts)

    def __str__(self) -> str:
        return self.display

    def connection(self, *, connect_timeout_s: float) -> RedisConnection:
        """Make a redis-py connection that is not connected yet.

        Reads have no timeout of their own: the sender keeps one deadline per call, and a
        timeout per read costs twice the CPU. Retries are the sender's too.
        """
        options = dict(self.options)
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
        return cast("RedisConnection", connection)


_KINDS: dict[str, Callable[..., Any]] = {
    "redis": Connection,
    "rediss": SSLConnection,
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
}


def _read_tcp(scheme: str, parts: SplitResult) -> Address:
    options = _login(parts) | _query(parts, _PLAIN | (_TLS if scheme == "rediss" else {}))
    host = unquote(parts.hostname or "localhost")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ConfigError(
            "the port in the server URL is no number from 1 to 65535 (or the password is not "
            "percent-encoded)"
        )
    database = unquote(parts.path).strip("/")
    if database:
        options.setdefault("db", _option("db", database, _number))
    if scheme == "rediss":
        # Alike in redis-py 5.3 and 8, whose defaults differ.
        checked = options.get("ssl_cert_reqs") != "none"
        options["ssl_check_hostname"] = options.get("ssl_check_hostname", True) and checked
        if "ssl_certfile" in options:
            options.setdefault("ssl_keyfile", options["ssl_certfile"])
    port = 6379 if port is None else port
    shown_host = f"[{host}]" if ":" in host else host
    display = f"{scheme}://{shown_host}:{port}/{options.get('db', 0)}"
    return Address(scheme, display, {"host": host, "port": port, **options})


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
    directory = Path(unquote(path, errors="surrogateescape")).expanduser().absolute()
    return Address(scheme, f"embedded://{path}", directory=directory if path else None)


_READERS = {
    "redis": _read_tcp,
    "rediss": _read_tcp,
    "unix": _read_unix,
    "embedded": _read_embedded,
}


def _login(parts: SplitResult) -> dict[str, Any]:
    given = {"username": parts.username, "password": parts.password}
    return {name: unquote(text) for name, text in given.items() if text}


def _query(parts: SplitResult, readers: _Readers) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in readers:
            raise ConfigError(
                f"unknown option {name!r} in the server URL: known are {', '.join(readers)}"
            )
        options[name] = _option(name, text, readers[name])
    return options


def _option(name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError):
        pass
    raise ConfigError(f"{name} in the server URL has a value that cannot be used")
