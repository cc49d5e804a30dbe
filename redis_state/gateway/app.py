"""The gateway as an application of Starlette, to be served by itself or mounted in another one.

app.mount("/agents", create_gateway(store, auth=auth))
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast
from weakref import WeakSet

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from redis_state import __version__
from redis_state.errors import ConfigError
from redis_state.gateway.answers import HttpProblem, not_known_now, problem_answer
from redis_state.gateway.auth.hook_links import HookLinks
from redis_state.gateway.auth.open import LOCAL_NAMES, has_loopback
from redis_state.gateway.auth.principal import Authenticator, Principal, Unauthenticated
from redis_state.gateway.calls import Operation, Over, RawRoute
from redis_state.gateway.chat.ag_ui import operations as ag_ui
from redis_state.gateway.chat.ai_sdk import operations as ai_sdk
from redis_state.gateway.console.app import ConsolePages
from redis_state.gateway.console.options import ConsoleOptions
from redis_state.gateway.durable_streams import answers as stream_answers
from redis_state.gateway.durable_streams.feeds import StreamFeeds
from redis_state.gateway.durable_streams.route import StreamRoute
from redis_state.gateway.openapi import describe
from redis_state.gateway.requests.guard import RequestGuard, check_origins
from redis_state.gateway.requests.limits import CallerUsage, GatewayLimits
from redis_state.gateway.requests.masking import masked_scope
from redis_state.gateway.routes.pool import health, queues, rates, schedules, workers
from redis_state.gateway.routes.sessions import events, sessions, socket, updates
from redis_state.gateway.routes.tasks import (
    bulk,
    changes,
    gathering,
    hooks,
    messages,
    pauses,
    tasks,
)
from redis_state.gateway.runtime import PerLoop
from redis_state.gateway.streaming.hub import Hub
from redis_state.gateway.streaming.response import OutsideStreams
from redis_state.gateway.streaming.websocket import BESIDE_BODY_BYTES
from redis_state.models import StateUpdate
from redis_state.store import RedisStateStore
from redis_state.worker import TaskClient

OPERATIONS: tuple[Operation, ...] = (
    *sessions.OPERATIONS,
    *events.OPERATIONS,
    *updates.OPERATIONS,
    *tasks.OPERATIONS,
    *changes.OPERATIONS,
    *gathering.OPERATIONS,
    *messages.OPERATIONS,
    *bulk.OPERATIONS,
    *pauses.OPERATIONS,
    *queues.OPERATIONS,
    *rates.OPERATIONS,
    *workers.OPERATIONS,
    *schedules.OPERATIONS,
    *hooks.OPERATIONS,
    *ag_ui.OPERATIONS,
    *ai_sdk.OPERATIONS,
    *health.OPERATIONS,
)
# What a caller may see of an update: the update, a changed copy, or None.
VisibleTo: TypeAlias = Callable[[Principal, StateUpdate], StateUpdate | None]

_ALLOWED = ("authorization", "content-type", "idempotency-key", "last-event-id")
_NOBODY = Principal("anonymous")
_CODES = {404: "not_found", 405: "method_not_allowed"}


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """What operations work with, in one loop."""

    store: RedisStateStore
    client: TaskClient
    hub: Hub
    feeds: StreamFeeds
    visible: VisibleTo | None
    hooks: HookLinks | None
    usage: CallerUsage
    max_body_bytes: int
    openapi: Any
    metrics: Any


class Gateway(Starlette):
    """An application. See `create_gateway`."""

    def __init__(
        self,
        store: RedisStateStore,
        *,
        auth: Authenticator,
        hooks: HookLinks | None,
        cors: Iterable[str],
        hosts: Iterable[str],
        limits: GatewayLimits,
        queue: str | None,
        visible: VisibleTo | None,
        console: ConsoleOptions | None,
    ) -> None:
        self._store = store
        self._auth = auth
        self._hooks = hooks
        self._queue = queue
        self._visible = visible
        self._usage = CallerUsage(limits)
        self._answers: Counter[tuple[str, int]] = Counter()
        self._open = PerLoop(self._services)
        self._hubs: WeakSet[Hub | StreamFeeds] = WeakSet()
        self.max_body_bytes: int = limits.max_body_bytes
        self._console = None if console is None else self._pages(console)
        origins = check_origins(cors)
        super().__init__(
            routes=self._routes(),
            middleware=[
                Middleware(OutsideStreams),
                *_cors(origins),
                Middleware(RequestGuard, hosts=hosts, origins=origins),
            ],
            exception_handlers={HTTPException: _answer_problem},
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Tokens in its path and its query are hidden from the server's log."""
        if scope["type"] in ("http", "websocket"):
            scope = masked_scope(scope)
        await super().__call__(scope, receive, send)

    async def admit(self, request: HTTPConnection, operation: Operation) -> Principal:
        """Return the caller. Errors: HttpProblem, 401 or 429."""
        if operation.over is Over.NOTHING:
            return _NOBODY
        principal = await self.recognise(request)
        self.take(principal)
        return principal

    async def recognise(self, request: HTTPConnection) -> Principal:
        """Return the caller, without counting. Errors: HttpProblem, 401 or 503."""
        headers = {"www-authenticate": "Bearer"}
        try:
            principal = await self._auth.authenticate(request)
        except Unauthenticated as error:
            if error.passing:
                raise not_known_now(error.reason) from None
            headers["www-authenticate"] = 'Bearer error="invalid_token"'
            raise HttpProblem(401, "unauthenticated", error.reason, headers=headers) from None
        if principal is None:
            message = "credentials are needed: Authorization: Bearer"
            raise HttpProblem(401, "unauthenticated", message, headers=headers)
        return principal

    def take(self, principal: Principal) -> None:
        """Count one more of what a caller does. Errors: HttpProblem, 401 or 429."""
        if principal.expired():
            headers = {"www-authenticate": 'Bearer error="invalid_token"'}
            raise HttpProblem(401, "unauthenticated", "the token has expired", headers=headers)
        self._usage.take(f"subject {principal.subject}")

    @property
    def max_message_bytes(self) -> int:
        """How many bytes a message of a WebSocket may have: a larger one closes it with 1009."""
        return self.max_body_bytes + BESIDE_BODY_BYTES

    async def services(self) -> GatewayServices:
        """Return what operations work with, opened by the first request of a loop."""
        return await self._open.get()

    def count(self, operation: Operation, status: int) -> None:
        """Count an answer."""
        self._answers[operation.name, status] += 1

    def end_streams(self) -> None:
        """End all streams; their clients come back after some moments.

        Call it when the server begins to shut down: a server waits for its open answers first.
        """
        for hub in list(self._hubs):
            hub.end_streams()

    async def aclose(self) -> None:
        """Close what this loop's requests have opened. The store stays open."""
        await self._open.aclose()

    @cached_property
    def description(self) -> bytes:
        """The OpenAPI document."""
        return json.dumps(describe(OPERATIONS, version=__version__)).encode()

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncGenerator[None]:
        async with self._open.running():
            yield

    @asynccontextmanager
    async def _services(self) -> AsyncGenerator[GatewayServices]:
        async with (
            TaskClient(self._store, queue=self._queue) as client,
            Hub(self._store) as hub,
            StreamFeeds(self._store.streams) as feeds,
        ):
            self._hubs.update((hub, feeds))
            yield GatewayServices(
                store=self._store,
                client=client,
                hub=hub,
                feeds=feeds,
                visible=self._visible,
                hooks=self._hooks,
                usage=self._usage,
                max_body_bytes=self.max_body_bytes,
                openapi=lambda: self.description,
                metrics=self._metrics,
            )

    def _routes(self) -> list[BaseRoute]:
        paths: dict[str, list[Operation]] = {}
        for operation in OPERATIONS:
            paths.setdefault(operation.path, []).append(operation)
        routes: list[BaseRoute] = [socket.SocketRoute(self), StreamRoute(self)]
        routes += [RawRoute(self, path, its) for path, its in paths.items()]
        return routes if self._console is None else [*routes, *self._console.routes()]

    def _pages(self, options: ConsoleOptions) -> ConsolePages:
        return ConsolePages(
            options,
            auth=self._auth,
            usage=self._usage,
            max_body_bytes=self.max_body_bytes,
            services=self.services,
        )

    def _metrics(self) -> tuple[bytes, str] | None:
        try:
            from redis_state.gateway.metrics import GatewayMetrics  # noqa: PLC0415 - an extra
        except ImportError:
            return None
        return GatewayMetrics(self._answers, lambda: self._usage.streams).written()


def create_gateway(
    store: RedisStateStore,
    *,
    auth: Authenticator,
    hooks: HookLinks | None = None,
    cors: Iterable[str] = (),
    hosts: Iterable[str] = (),
    limits: GatewayLimits | None = None,
    queue: str | None = None,
    visible: VisibleTo | None = None,
    console: ConsoleOptions | bool = False,
) -> Gateway:
    """Make the gateway of a store, to serve or to mount. No I/O; the store stays the caller's.

    ``auth`` finds who calls. There is no default: `Public` and `Loopback` let everybody in, and
    have to be named. ``hooks`` reads the links of outsiders; without it there are none. ``cors``
    are the origins of other sites whose pages may call. ``hosts`` are the host names that are
    served: any if none is given, and with `Loopback`, also as one of `AnyOf`, this machine's.
    ``queue`` is that of submitted tasks, as in `TaskClient`. ``visible`` returns what a caller may
    see of an update: the update, a changed copy, or None. Results, errors and pauses are shown as
    updates that say the same would be.

    Mounted, it opens what it needs at its first request, and closes it when the loop ends. Errors:
    ConfigError.
    """
    given = cast("Any", auth)
    if not callable(getattr(given, "authenticate", None)):
        raise ConfigError("auth: an authenticator is needed, or Public(…) to let everybody in")
    return Gateway(
        store,
        auth=auth,
        hooks=hooks,
        cors=cors,
        # A page of any site may ask a server of this machine, under a name of its own.
        hosts=list(hosts) or (LOCAL_NAMES if has_loopback(auth) else ()),
        limits=limits or GatewayLimits(),
        queue=queue,
        visible=visible,
        console=(ConsoleOptions() if console else None) if isinstance(console, bool) else console,
    )


def _cors(origins: list[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", "POST", "PUT", "DELETE"],
            allow_headers=[*_ALLOWED, *stream_answers.ALLOWED],
            expose_headers=["retry-after", "www-authenticate", *stream_answers.EXPOSED],
        )
    ]


async def _answer_problem(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    code = _CODES.get(status, "refused")
    message = "there is no such thing" if code == "not_found" else code.replace("_", " ")
    return problem_answer(HttpProblem(status, code, message, headers=headers))
