"""Operations: a method and a path, who may call them, what they read and answer.

Every request goes the same way: who is it, how often has the caller come, may the caller do this,
is the request well formed; then the operation. A caller without the right learns nothing of what
there is. Reading one thing is then answered as if it did not exist, everything else with 403.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from time import monotonic
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from redis_state.errors import BackendUnavailable, InvalidField, RedisStateError
from redis_state.gateway.answers import (
    HttpProblem,
    forbidden,
    not_found,
    problem_answer,
)
from redis_state.gateway.auth.principal import Principal, Right
from redis_state.gateway.failures import log_failure, problem_for
from redis_state.gateway.requests.limits import read_body
from redis_state.gateway.requests.paths import read_parts
from redis_state.serialization import codec
from redis_state.store import RedisStateStore
from redis_state.worker import TaskClient

M = TypeVar("M", bound=BaseModel)

LONGEST_KEY = 200
# As long as known keys of a JWKS hold in an outage: a right that was lost may last so long more.
LONGEST_UNKNOWN_S: Final = 3_600.0
_UNAVAILABLE = 503


class Over(Enum):
    """What an operation's right has to be over."""

    SESSION = "the session in the path"
    EVERYTHING = "everything"
    # The operation decides, by what it finds.
    OWN = "what it names"
    NOTHING = "nothing: everybody may call it"


class Services(Protocol):
    """What operations work with."""

    store: RedisStateStore
    client: TaskClient


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request, checked: who, what, and with what to do it."""

    request: HTTPConnection
    services: Any
    principal: Principal
    path: Mapping[str, str]
    query: BaseModel | None = None
    body: BaseModel | None = None
    # Of a command over a WebSocket, which has no headers of its own.
    key: str | None = None
    # Finds out whose a request is now: a caller may lose its rights while its stream is open.
    recognise: Callable[[HTTPConnection], Awaitable[Principal | None]] | None = None

    @property
    def client(self) -> TaskClient:
        """The client of tasks."""
        client: TaskClient = self.services.client
        return client

    @property
    def store(self) -> RedisStateStore:
        """The store."""
        store: RedisStateStore = self.services.store
        return store

    @property
    def task(self) -> tuple[str, str]:
        """The session and the task in the path."""
        return self.path["session"], self.path["task"]

    def query_as(self, model: type[M]) -> M:
        """Return the parameters of the query."""
        return _as(model, self.query)

    def given(self, model: type[M]) -> M:
        """Return the body."""
        return _as(model, self.body)

    @property
    def has_same_caller(self) -> CallerCheck:
        """Asks whether its credentials are still those of the same caller, with the same scopes."""
        return CallerCheck(self)

    def idempotency_key(self) -> str | None:
        """Return the header Idempotency-Key as text. Errors: InvalidField."""
        if self.key is not None:
            return self.key
        raw = self.request.headers.get("idempotency-key")
        if raw is None:
            return None
        try:
            key = raw.encode("latin-1").decode()
        except UnicodeDecodeError:
            key = raw
        if not 0 < len(key) <= LONGEST_KEY:
            raise InvalidField("Idempotency-Key", f"needs 1 to {LONGEST_KEY} characters")
        return key

    def own_key(self, *about: str) -> str | None:
        """Return the key as one of this caller's own: nobody else's call is a repetition of it."""
        key = self.idempotency_key()
        return None if key is None else codec.fingerprint(self.principal.subject, key, *about)


class CallerCheck:
    """Asks whether a request's credentials are still those of the same caller, with its scopes.

    A caller may lose its rights while its stream is open. While the authenticator cannot say so, or
    fails, the caller keeps them. This holds no more than it needs for that: each open stream has
    one.
    """

    __slots__ = ("_recognise", "_scope", "_scopes", "_subject", "_unknown_since")

    def __init__(self, call: ApiCall) -> None:
        self._recognise = call.recognise
        self._scope = call.request.scope
        self._subject, self._scopes = call.principal.subject, call.principal.scopes
        self._unknown_since: float | None = None

    async def __call__(self) -> bool:
        """Ask. Errors: BackendUnavailable once it could not be found out for an hour."""
        if self._recognise is None:
            return True
        try:
            now = await self._recognise(HTTPConnection(self._scope))
        except HttpProblem as problem:
            return problem.status == _UNAVAILABLE and self._bear(problem)
        except Exception as error:  # noqa: BLE001 - whatever an authenticator of a host raises
            return self._bear(error)
        self._unknown_since = None
        return now is not None and (now.subject, now.scopes) == (self._subject, self._scopes)

    def _bear(self, error: Exception) -> bool:
        """Keep the caller for now. Errors: BackendUnavailable."""
        if self._unknown_since is None:
            self._unknown_since = monotonic()
            # Once in an outage, not with each heartbeat.
            if not isinstance(error, (HttpProblem, RedisStateError)):
                log_failure("the authenticator of an open stream", error)
        if monotonic() - self._unknown_since >= LONGEST_UNKNOWN_S:
            raise BackendUnavailable("gateway", "who calls cannot be found out")
        return True


Endpoint = Callable[[ApiCall], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be called. ``answers`` are the statuses of errors beside those that all have."""

    method: str
    path: str
    endpoint: Endpoint = field(repr=False)
    summary: str
    right: Right = Right.READ
    over: Over = Over.SESSION
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    result: type[BaseModel] | None = None
    status: int = 200
    answers: Sequence[int] = ()
    key: str | None = None
    media_type: str = "application/json"

    @property
    def name(self) -> str:
        """The name of the operation, for OpenAPI and metrics."""
        function: Any = self.endpoint
        return str(function.__name__).strip("_")

    @property
    def reads_one(self) -> bool:
        """Whether it reads one thing, rather than a list, or changes something."""
        return self.method == "GET" and self.path.endswith("}")


class Desk(Protocol):
    """What serves operations: who calls, and the counts."""

    max_body_bytes: int

    @property
    def max_message_bytes(self) -> int:
        """How many bytes a message of a WebSocket may have."""
        ...

    async def admit(self, request: HTTPConnection, operation: Operation) -> Principal:
        """Return the caller. Errors: HttpProblem, 401 or 429."""
        ...

    async def recognise(self, request: HTTPConnection) -> Principal:
        """Return the caller, without counting. Errors: HttpProblem, 401."""
        ...

    def take(self, principal: Principal) -> None:
        """Count one more of what a caller does. Errors: HttpProblem, 401 or 429."""
        ...

    async def services(self) -> Any:
        """Return what operations work with."""
        ...

    def count(self, operation: Operation, status: int) -> None:
        """Count an answer."""
        ...


class RawRoute(BaseRoute):
    """The operations of one path, found by the path as it was sent."""

    def __init__(self, desk: Desk, path: str, operations: Sequence[Operation]) -> None:
        self.path: str = path
        self.operations: dict[str, Operation] = {each.method: each for each in operations}
        if "GET" in self.operations:
            self.operations.setdefault("HEAD", self.operations["GET"])
        self._desk = desk
        self._parts = path.strip("/").split("/")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare a request's path and method."""
        parts = read_parts(scope) if scope["type"] == "http" else None
        if parts is None or len(parts) != len(self._parts):
            return Match.NONE, {}
        found: dict[str, str] = {}
        for wanted, part in zip(self._parts, parts, strict=True):
            if wanted.startswith("{"):
                found[wanted.strip("{}")] = part
            elif wanted != part:
                return Match.NONE, {}
        known = scope["method"] in self.operations
        return Match.FULL if known else Match.PARTIAL, {"path_params": found}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        operation = self.operations.get(scope["method"])
        if operation is None:
            allow = {"allow": ", ".join(sorted(self.operations))}
            raise HTTPException(405, headers=allow)
        request = Request(scope, receive)
        response = await _serve(self._desk, operation, request)
        self._desk.count(operation, response.status_code)
        await response(scope, receive, send)


async def _serve(desk: Desk, operation: Operation, request: Request) -> Response:
    try:
        principal = await desk.admit(request, operation)
        path = request.path_params
        authorise(operation, principal, path)
        query = None if operation.query is None else read_query(operation.query, request)
        body = None
        if operation.body is not None:
            body = await _read_body(operation.body, request, most=desk.max_body_bytes)
        services = await desk.services()
        call = ApiCall(request, services, principal, path, query, body, recognise=desk.recognise)
        return await operation.endpoint(call)
    except Exception as error:  # noqa: BLE001 - each has its answer
        return problem_answer(problem_for(operation.name, error))


async def perform(
    operation: Operation,
    services: Any,
    principal: Principal,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, Any] | None = None,
    body: Any = None,
    key: str | None = None,
) -> Any:
    """Call an operation from within this process, with the rights and checks of a request.

    ``key`` is its Idempotency-Key. Returns the document of the answer. Errors: HttpProblem; those
    of the library.
    """
    named = dict(path or {})
    authorise(operation, principal, named)
    asked = None if operation.query is None else validated(operation.query, dict(query or {}))
    given = None if operation.body is None else validated(operation.body, body or {})
    request = Request({"type": "http", "method": operation.method, "headers": []})
    call = ApiCall(request, services, principal, named, asked, given, key)
    answered = await operation.endpoint(call)
    return codec.decode(bytes(answered.body))


def authorise(operation: Operation, principal: Principal, path: Mapping[str, str]) -> None:
    """Refuse a caller without the right. Errors: HttpProblem, 403 or 404."""
    if operation.over is Over.SESSION:
        allowed = principal.may(operation.right, path["session"])
    elif operation.over is Over.EVERYTHING:
        allowed = principal.everywhere(operation.right)
    else:
        return
    if not allowed:
        raise not_found() if _hides(operation) else forbidden()


def _hides(operation: Operation) -> bool:
    return operation.method == "GET" and "{" in operation.path


def _query_pairs(request: HTTPConnection) -> list[tuple[str, str]]:
    raw = request.scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qsl(raw, keep_blank_values=True, errors="surrogatepass")
    except ValueError:
        raise InvalidField("query", "is not UTF-8") from None


def read_query(model: type[BaseModel], request: HTTPConnection) -> BaseModel:
    """Read the parameters of a query. Errors: HttpProblem, InvalidField."""
    given: dict[str, Any] = {}
    lists = _lists_of(model)
    for name, value in _query_pairs(request):
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidField(name, "was given twice")
        else:
            given[name] = value
    return validated(model, given)


@cache
def _lists_of(model: type[BaseModel]) -> frozenset[str]:
    fields = model.model_fields.items()
    return frozenset(name for name, info in fields if "list[" in str(info.annotation).lower())


async def _read_body(model: type[BaseModel], request: Request, *, most: int) -> BaseModel:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await read_body(request, most=most)
    if kind != "application/json" and (body or kind):
        raise HttpProblem(415, "unsupported_media_type", "the body is to be application/json")
    try:
        document: Any = codec.decode(body) if body else dict[str, Any]()
    except codec.DecodeError as error:
        raise HttpProblem(400, "malformed", f"the body is no JSON: {error.reason}") from None
    return validated(model, document)


def validated(model: type[M], given: Any) -> M:
    """Check what was given by a model. Errors: HttpProblem, 422, without any value."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        # Without the values: they may be secrets.
        wrong = error.errors(include_input=False, include_url=False, include_context=False)
        listed = [{"field": ".".join(map(str, e["loc"])), "problem": e["msg"]} for e in wrong[:20]]
        first = listed[0]
        message = f"{first['field'] or 'the body'}: {first['problem']}"
        raise HttpProblem(422, "invalid", message, facts={"errors": listed}) from None


def _as(model: type[M], found: BaseModel | None) -> M:
    if not isinstance(found, model):
        raise TypeError(f"the operation reads no {model.__name__}")
    return found
