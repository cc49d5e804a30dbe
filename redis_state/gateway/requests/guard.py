"""Which requests a browser may send here: the host they name, and the page that they come from.

A browser says from which page a request comes. One that changes something, and comes from a page of
another origin that is not allowed, is refused: whatever cookies it has.

Probes of health are answered under any host: a kubelet names a pod by its address.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from redis_state.errors import ConfigError
from redis_state.gateway.answers import HttpProblem, refuse
from redis_state.gateway.requests.paths import read_parts

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_PAGES = frozenset({"same-origin", "none"})
# They answer everybody, and have nothing of the store.
_PROBES = (["healthz"], ["readyz"])


class RequestGuard:
    """Check host and origin of each request, before anything else happens."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(map(name_of_host, hosts))
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        # A page of any site may open a WebSocket, with the cookies of this one.
        refused = self._refuses(connection, scope.get("method", "WEBSOCKET"))
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await refuse(refused, scope, receive, send)

    def _refuses(self, connection: HTTPConnection, method: str) -> HttpProblem | None:
        host = connection.headers.get("host", "")
        served = not self._hosts or name_of_host(host) in self._hosts
        if not served and not (method in _SAFE and read_parts(connection.scope) in _PROBES):
            return HttpProblem(421, "wrong_host", "this host is not served here")
        if method in _SAFE:
            return None
        origin = connection.headers.get("origin")
        if origin is not None and origin in self._origins:
            return None
        site = connection.headers.get("sec-fetch-site")
        own = origin is None or _host_of(origin) == host.lower()
        if (site is not None and site not in _OWN_PAGES) or (site is None and not own):
            return HttpProblem(403, "cross_site", "a page of another origin may not do this")
        return None


def check_origins(origins: Iterable[str]) -> list[str]:
    """Check an allow-list of origins. Errors: ConfigError."""
    listed = list(origins)
    for origin in listed:
        try:
            parts = urlsplit(origin)
        except ValueError:
            raise ConfigError(f"cors: {origin!r} is no origin") from None
        if parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != origin:
            raise ConfigError(f"cors: {origin!r} is no origin, such as https://app.example.com")
    return listed


def name_of_host(host: str) -> str:
    """Return a host's name without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _host_of(origin: str) -> str | None:
    """Return the host and port of an origin; None for one that has none, or is no URL."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
