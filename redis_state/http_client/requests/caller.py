"""Requests to a gateway: credentials, deadlines, and what may be repeated.

What reads is repeated, and what has an id of its own: the gateway does it once. Another change is
repeated only if nothing of it was sent, see `Sending`. Otherwise its caller learns that the outcome
is unknown.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import httpx

from redis_state import __version__, limits
from redis_state.errors import (
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    InvalidField,
    OutcomeUnknown,
    RedisStateError,
)
from redis_state.http_client.requests.problems import Problem, read_problem
from redis_state.http_client.requests.sending import Sending
from redis_state.models.tasks import new_id
from redis_state.serialization import codec
from redis_state.timeouts import timeout

# A token, or what returns the one to be used now; None for none.
Credentials: TypeAlias = str | Callable[[], str | Awaitable[str]] | None
Query: TypeAlias = Sequence[tuple[str, str]]

_LONGEST_WAIT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
# A connection that is idle for longer may be closed by the server while we use it.
_IDLE_S = 3.0
_CONNECT_S = 10.0
# Of the time for a call, so that a lost connection leaves time for another one.
_PART_FOR_ONE = 3
LONGEST_KEY = 200
_UNAUTHORISED = 401
_LONGEST_PROBLEM = 1 << 16
_HEADER_TEXT = re.compile(r"[!-~]+")


def no_route() -> CommandRefused:
    """Make the error of a route that a gateway does not have."""
    return CommandRefused("this gateway has no such route: it may be older than this client")


def not_readable() -> CommandRefused:
    """Make the error of what is there for each caller who may read it."""
    return CommandRefused("the caller may not read this, or the gateway is older than this client")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. ``repeatable``: to send it again changes nothing more.

    ``reads``: it changes nothing, whatever its method.
    ``missing`` makes the error of an answer that there is no such thing. With None that is no
    error: `GatewayCaller.call` returns None.
    """

    method: str
    parts: Sequence[str]
    query: Query = ()
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    key: str | None = None
    repeatable: bool = True
    reads: bool = False
    missing: Callable[[], RedisStateError] | None = no_route

    @property
    def changes(self) -> bool:
        """Whether it may have happened if it was sent."""
        return self.method != "GET" and not self.reads


@dataclass(frozen=True, slots=True)
class _Failure:
    """A request without an answer: whether it may have happened, and whether to try again."""

    text: str
    sent: bool
    final: bool = False


class GatewayCaller:
    """Send requests to one gateway."""

    def __init__(
        self,
        base_url: str,
        credentials: Credentials,
        *,
        timeout_s: float,
        idle_s: float,
        tls: ssl.SSLContext | None,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self.address: str = _checked(base_url)
        self._credentials = credentials
        self._timeout_s = limits.seconds("timeout_s", timeout_s)
        self._idle_s = limits.seconds("idle_s", idle_s)
        self._reports_stages = transport is None or type(transport) is httpx.AsyncHTTPTransport
        self._http = httpx.AsyncClient(
            verify=tls_for(self.address) if tls is None else tls,
            transport=transport,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_keepalive_connections=20, keepalive_expiry=_IDLE_S),
            headers={"user-agent": f"redis_state/{__version__}"},
            follow_redirects=False,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @property
    def longest_wait_s(self) -> float:
        """How long a gateway may keep one call, so that its answer comes within the time for it."""
        return min(_LONGEST_WAIT_S, self._timeout_s / _PART_FOR_ONE / 2)

    async def call(self, ask: Ask) -> Any:
        """Return what the answer says; None if there is no such thing, and that is no error."""
        loop = asyncio.get_running_loop()
        until, maybe = loop.time() + self._timeout_s, False
        problem: Problem | None = None
        failure = _Failure("no answer in time", sent=False)
        for pause_s in _pauses():
            found = await self._attempt(ask, until)
            if isinstance(found, httpx.Response):
                problem = read_problem(found.status_code, found.headers, found.content)
                if problem is None:
                    return _document(self.address, found)
                if problem.nothing and ask.missing is None:
                    return None
                if not problem.passing:
                    raise problem.error(self.address, ask)
                failure = _Failure(problem.message, sent=problem.maybe(ask))
            else:
                problem, failure = None, found
            maybe = maybe or (failure.sent and ask.changes)
            wait_s = max(pause_s, 0.0 if problem is None else problem.after_s)
            if failure.final or (failure.sent and not ask.repeatable):
                break
            if loop.time() + wait_s >= until:
                break
            await asyncio.sleep(wait_s)
        if maybe:
            raise OutcomeUnknown(self.address, failure.text)
        raise BackendUnavailable(self.address, failure.text, final=failure.final)

    @asynccontextmanager
    async def stream(
        self, ask: Ask, *, cursor: str | None
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        """Open a stream of events, and give its chunks. They end however the connection does.

        Errors: InvalidField for what can be no cursor; BackendUnavailable if it cannot be opened
        now; those of the answer.
        """
        headers = {"accept": "text/event-stream"}
        if cursor is not None:
            headers["last-event-id"] = _cursor_of(cursor)
        timeout = httpx.Timeout(self._idle_s, connect=_CONNECT_S)
        found = await self._send(ask, headers, timeout, self._sending(), stream=True)
        if isinstance(found, _Failure):
            raise BackendUnavailable(self.address, found.text, final=found.final)
        try:
            if not found.is_success:
                body = await _read_some(found)
                problem = read_problem(found.status_code, found.headers, body)
                if problem is not None:
                    raise problem.error(self.address, ask)
            if not found.headers.get("content-type", "").startswith("text/event-stream"):
                raise CommandRefused(f"{self.address}: the answer is no stream of a gateway's")
            async with aclosing(_chunks(found)) as chunks:
                yield chunks
        finally:
            await found.aclose()

    async def _attempt(self, ask: Ask, until: float) -> httpx.Response | _Failure:
        parts = _PART_FOR_ONE if ask.repeatable else 1
        now = asyncio.get_running_loop().time()
        most_s = max(min(self._timeout_s / parts, until - now), 0.001)
        # A handshake that is cancelled leaves its socket open, so that it ends before: TCP and TLS
        # have half of the time each.
        times = httpx.Timeout(None, connect=min(_CONNECT_S, most_s / 2))
        sending = self._sending()
        try:
            async with timeout(most_s):
                return await self._send(ask, {}, times, sending)
        except TimeoutError:
            text = "no answer in time" if sending.maybe else "no connection in time"
            return _Failure(text, sent=sending.maybe)

    def _sending(self) -> Sending:
        return Sending(reports=self._reports_stages)

    async def _send(
        self,
        ask: Ask,
        headers: dict[str, str],
        timeout: httpx.Timeout,
        sending: Sending,
        *,
        stream: bool = False,
    ) -> httpx.Response | _Failure:
        token = await self._token()
        found = await self._send_once(ask, headers, timeout, token, sending, stream=stream)
        if isinstance(found, _Failure) or found.status_code != _UNAUTHORISED:
            return found
        # It was refused before anything happened. A function that makes tokens has always a newer
        # one: it is tried once.
        sending.refused()
        newer = await self._token()
        if newer == token:
            return found
        await found.aclose()
        return await self._send_once(ask, headers, timeout, newer, sending, stream=stream)

    async def _send_once(
        self,
        ask: Ask,
        headers: dict[str, str],
        timeout: httpx.Timeout,
        token: str | None,
        sending: Sending,
        *,
        stream: bool,
    ) -> httpx.Response | _Failure:
        if self._http.is_closed:
            return _Failure("the client is closed", sent=False, final=True)
        own = dict(headers)
        if token is not None:
            own["authorization"] = f"Bearer {token}"
        if ask.key is not None:
            own["idempotency-key"] = header_key(ask.key)
        content = None
        if ask.body is not None:
            own["content-type"], content = "application/json", codec.encode(ask.body)
        try:
            request = self._http.build_request(
                ask.method,
                self._url(ask),
                headers=own,
                content=content,
                timeout=timeout,
                extensions=sending.begin(),
            )
            return await self._http.send(request, stream=stream)
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            # The error has the request, and with it the token: it goes no further.
            return _failure(error, sent=sending.failed(error))

    def _url(self, ask: Ask) -> str:
        path = "/".join(map(_quoted, ask.parts))
        query = f"?{urlencode(ask.query, errors='surrogatepass')}" if ask.query else ""
        return f"{self.address}/v1/{path}{query}"

    async def _token(self) -> str | None:
        given: Any = self._credentials
        if callable(given):
            given = given()
            given = await given if isawaitable(given) else given
        if given is None or (isinstance(given, str) and _HEADER_TEXT.fullmatch(given)):
            return given
        # Nothing of it is in the error, nor is the error of httpx, which has it.
        raise InvalidField("token", "is no text that a header may have")


def key_of(field: str, given: str | None) -> str:
    """Return the key of a call: the caller's, or a new one. Errors: InvalidField."""
    key: Any = new_id() if given is None else given
    if not isinstance(key, str) or not key:
        raise InvalidField(field, f"text of 1 to {LONGEST_KEY} signs is needed")
    return key


def _cursor_of(given: Any) -> str:
    """Return a cursor as a header may have it. No stream has given another one."""
    if not isinstance(given, str) or not _HEADER_TEXT.fullmatch(given):
        raise InvalidField("after", "must be a cursor of this stream, $ for its end, or 0 for all")
    return given


def header_key(key: str) -> str:
    """Write an idempotency key as a header may have it: another one as its digest."""
    if key.isascii() and key.isprintable() and key == key.strip() and 0 < len(key) <= LONGEST_KEY:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _checked(base_url: str) -> str:
    """Check an address. Errors: ConfigError, without the address: it may hold a password."""
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError):
        raise ConfigError("base_url: is no URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError("base_url: http:// or https:// and a host are needed")
    if url.userinfo:
        raise ConfigError("base_url: credentials are given as token")
    if url.query or url.fragment:
        raise ConfigError("base_url: may have no query and no fragment")
    return str(url).rstrip("/")


def tls_for(address: str) -> ssl.SSLContext | bool:
    """Return what checks the certificates of https://. For http:// the authorities are not read.

    That takes most of the time of making a client. What is returned instead trusts nobody: a
    server that is reached over TLS all the same is refused.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if address.startswith("http://") else True


def _quoted(part: str) -> str:
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return quote(part.encode("utf-8", "surrogatepass"), safe="")


def _pauses() -> Generator[float, None, None]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s * random.uniform(0.5, 1.0)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def _failure(error: Exception, *, sent: bool) -> _Failure:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = f"its certificate is not accepted: {cause.verify_message}"
            return _Failure(text, sent=False, final=True)
        cause = cause.__cause__ or cause.__context__
    return _Failure(f"the connection failed: {type(error).__name__}", sent=sent)


def _document(address: str, response: httpx.Response) -> Any:
    broken = ""
    try:
        return codec.decode(response.content)
    except codec.DecodeError as error:
        broken = error.reason
    raise CommandRefused(f"{address}: the answer is no gateway's: {broken}")


async def _read_some(response: httpx.Response) -> bytes:
    """Read the answer that came instead of a stream: its begin, and not for long."""
    body = b""
    try:
        async with timeout(_CONNECT_S), aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > _LONGEST_PROBLEM:
                    break
    except TimeoutError:
        pass
    return body


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    except (httpx.HTTPError, OSError):
        # However it ended: who reads connects again.
        return
