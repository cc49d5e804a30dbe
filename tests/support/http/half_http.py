"""A client that does over HTTP what a gateway offers, and the rest by itself.

So the tests of `TaskClient` are tests of `HttpTaskClient` too: see `make test-http-client`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from redis_state.gateway import GatewayLimits, create_gateway
from redis_state.http_client import HttpTaskClient
from redis_state.http_client.client import _OF_HOSTS
from redis_state.transport.keys import is_pause_id
from redis_state.worker import TaskClient, TaskFilters
from tests.support.http.asgi_servers import serving_asgi
from tests.support.http.gateway import tokens
from tests.support.http.http_gateway import EVERYTHING

_BY_ID = ("approve", "reject", "resolve", "pause", "delegate")
# What the direct client alone returns whole: tokens, contexts, the input of a schedule.
_FOR_HOSTS = ("pauses", "pause", "schedules")
CALLS = {"http": 0, "direct": 0}


class HalfHttp:
    """Look up each method over HTTP first."""

    def __init__(self, direct: Any, over_http: Any) -> None:
        self._direct = direct
        self._http = over_http

    def __getattr__(self, name: str) -> Any:
        direct = getattr(self._direct, name)
        over_http = getattr(self._http, name, None)
        if over_http is None or name.startswith("_") or name in _FOR_HOSTS:
            return direct
        if not callable(direct):
            return HalfHttp(direct, over_http)
        return _chooser(name, direct, over_http)


def _chooser(name: str, direct: Callable[..., Any], over_http: Callable[..., Any]) -> Any:
    signature = inspect.signature(over_http)

    def call(*args: Any, **kwargs: Any) -> Any:
        if _fits(name, signature, args, kwargs):
            CALLS["http"] += 1
            return over_http(*args, **kwargs)
        CALLS["direct"] += 1
        return direct(*args, **kwargs)

    return call


def _fits(name: str, signature: inspect.Signature, args: Any, kwargs: Any) -> bool:
    """Return whether a gateway takes the call: by its arguments, and what decides a pause."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return False
    named = given.get("filters", {})
    unknown = named.keys() - TaskFilters.__annotations__.keys()
    if unknown or _OF_HOSTS & given.get("options", {}).keys() or not _is_unicode([given, named]):
        return False
    if name in _BY_ID:
        return is_pause_id(given["token"])
    decides = getattr(given.get("event_type"), "value", "") in ("APPROVE", "REJECT")
    return not decides and "resume_token" not in (given.get("payload") or {})


def _is_unicode(given: Any) -> bool:
    """Return whether it is what a gateway takes: no half of a surrogate pair, and no NUL."""
    text = repr(given)
    return "\\ud" not in text and "\\x00" not in text


@asynccontextmanager
async def half_over_http(client: TaskClient) -> AsyncGenerator[TaskClient]:
    """Serve the client's store by a gateway, and call that."""
    limits = GatewayLimits(requests_per_s=None, streams=10_000, max_body_bytes=64 << 20)
    app = create_gateway(client.store, auth=tokens, queue=client._queue.name, limits=limits)
    try:
        async with (
            serving_asgi(app, stop=app.end_streams) as port,
            HttpTaskClient(f"http://127.0.0.1:{port}", tokens.mint("user", EVERYTHING)) as http,
        ):
            yield cast("TaskClient", HalfHttp(client, http))
    finally:
        await app.aclose()
