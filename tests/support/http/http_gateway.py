"""A gateway behind a real HTTP server, behind a proxy with faults, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis_state import RedisStateStore
from redis_state.http_client import HttpTaskClient
from redis_state.worker import TaskClient
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import Served, gateway_of, tokens
from tests.support.servers.faults import Proxy

EVERYTHING = ("admin:*", "submit:*", "read:*", "steer:*", "resolve:*")


@dataclass(frozen=True, slots=True)
class OverHttp:
    """A gateway, the direct client of its pool, and a client over HTTP."""

    served: Served
    proxy: Proxy
    http: HttpTaskClient

    @property
    def direct(self) -> TaskClient:
        """The client that reaches the store."""
        return self.served.client

    @property
    def base_url(self) -> str:
        """Where the gateway is reached, through the proxy."""
        return url_of(self.proxy)

    def caller(self, subject: str, *scopes: str, **options: Any) -> HttpTaskClient:
        """Make a client with these scopes."""
        return HttpTaskClient(self.base_url, tokens.mint(subject, scopes), **options)


def url_of(proxy: Proxy) -> str:
    """Return where a proxied gateway is mounted."""
    return f"http://127.0.0.1:{proxy.port}"


@asynccontextmanager
async def over_http(
    store: RedisStateStore, *, handlers: Iterable[str] = (), **options: Any
) -> AsyncGenerator[OverHttp]:
    """Serve handlers, their gateway, and give a client that may do everything."""
    async with (
        gateway_of(store, handlers=handlers, **options) as served,
        serving_asgi(served.app, stop=served.app.end_streams) as port,
        Proxy(f"redis://127.0.0.1:{port}") as proxy,
        HttpTaskClient(url_of(proxy), tokens.mint("root", EVERYTHING)) as http,
    ):
        yield OverHttp(served, proxy, http)
