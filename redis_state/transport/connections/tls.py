"""Connections over TLS, which share what was loaded of certificates."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis.asyncio.connection import SSLConnection

from redis_state.errors import ConfigError

# More kinds of connections than a process has. A context holds the certificates of the system.
_MAX_CONTEXTS = 16
# How long a server may take to answer the end of TLS. By default a silent one keeps the socket open
# for half a minute.
_LEAVE_S = 0.1
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_LOADED = (*_FILES, "ssl_ca_data", "ssl_ciphers", "ssl_min_version")
_LEGACY = re.compile(rb"^Proc-Type:[^\n]*\bENCRYPTED\b", re.MULTILINE)

_contexts: dict[tuple[Any, ...], ssl.SSLContext] = {}


class TlsOptionsUnusable(Exception):
    """An option of TLS cannot be used, or its file. ``final`` unless that cannot be read."""

    def __init__(self, text: str, *, final: bool) -> None:
        super().__init__(text)
        self.final: bool = final


class TlsConnection(SSLConnection):
    """A connection of redis-py that may check the certificate against another name.

    A Sentinel or a cluster may announce addresses that stand in no certificate.

    Connections with the same options share a context until one of its files changes. To load the
    system's certificates takes some 20 ms, in which the event loop does nothing else: too long
    for each of the connections that a failover opens again. A certificate that was renewed on the
    disk is read by the next connection.
    """

    def __init__(self, *, ssl_server_name: str | None = None, **options: Any) -> None:
        refuse_encrypted(options)
        super().__init__(**options)  # pyright: ignore[reportUnknownMemberType] - redis-py's are untyped
        self._server_name = ssl_server_name
        self._tls = {name: value for name, value in options.items() if name.startswith("ssl_")}

    def _connection_arguments(self) -> Any:
        # Before it is loaded: a file that changes meanwhile is read again by the next connection.
        key = _key(self._tls)
        known: Any = self.ssl_context
        known.context = _contexts.pop(key, None)
        try:
            arguments: Any = super()._connection_arguments()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - as above
        except (OSError, ValueError) as error:  # also of TLS
            raise _unusable(self._tls, error) from None
        _contexts[key] = arguments["ssl"]
        # Of a copy: other threads may add theirs.
        for oldest in list(_contexts)[:-_MAX_CONTEXTS]:
            _contexts.pop(oldest, None)
        if self._server_name is not None:
            arguments["server_hostname"] = self._server_name
        arguments["ssl_shutdown_timeout"] = _LEAVE_S
        return arguments


def refuse_encrypted(options: Mapping[str, Any]) -> None:
    """Refuse a key that needs a password: OpenSSL would ask for it at the terminal, and wait.

    Errors: ConfigError.
    """
    file = options.get("ssl_keyfile") or options.get("ssl_certfile")
    if file is None or options.get("ssl_password"):
        return
    try:
        found = Path(file).read_bytes()
    except OSError:
        # Loading it says what is wrong.
        return
    if b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in found or _LEGACY.search(found):
        raise ConfigError("ssl_keyfile: its key is encrypted; name a file with a key that is not")


def _unusable(options: Mapping[str, Any], error: Exception) -> TlsOptionsUnusable:
    for name in _FILES:
        file = options.get(name)
        try:
            if file:
                Path(file).open("rb").close()
        except OSError as unread:
            # One that is being renewed may be there in a moment.
            text = f"{name}: {file} cannot be read: {unread.strerror}"
            return TlsOptionsUnusable(text, final=False)
    given = ", ".join(name for name in _LOADED if options.get(name) is not None)
    return TlsOptionsUnusable(f"{given} cannot be used: {error}", final=True)


def _key(options: dict[str, Any]) -> tuple[Any, ...]:
    paths = ssl.get_default_verify_paths()
    files = [options.get(name) for name in _FILES]
    stamps = tuple(_stamp(file) for file in (*files, paths.cafile, paths.capath))
    return *sorted(options.items(), key=lambda option: option[0]), stamps


def _stamp(file: str | None) -> tuple[int, ...] | None:
    """Return what changes with a file, None where there is none."""
    try:
        found = Path(file).stat() if file else None
    except OSError:
        # Loading it says which file is missing, and why.
        return None
    return found and (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
