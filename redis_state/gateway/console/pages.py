"""Pages: a method and a path, and what renders it. Errors are pages too.

A page does what it shows through the operations of the gateway, under the rights of who looks.
"""

from __future__ import annotations

import logging
import re
import secrets
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from redis_state.errors import RedisStateError
from redis_state.gateway.answers import HttpProblem, problem_of
from redis_state.gateway.auth.principal import Principal
from redis_state.gateway.calls import Operation, perform
from redis_state.gateway.console.logins import Logins, cookie_path
from redis_state.gateway.console.rendering import html_response, write_query
from redis_state.gateway.console.shared import SharedReads
from redis_state.gateway.requests.limits import CallerUsage, read_body
from redis_state.gateway.requests.paths import read_parts

log: logging.Logger = logging.getLogger(__name__)

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 2_000
# What a form asks a person for. Others are its own, such as its token and the tasks chosen.
_WRITTEN = re.compile(r"text|value|reason|to|f[0-9]+")
Fields = Mapping[str, list[str]]


class Backstage(Protocol):
    """What pages are served with."""

    logins: Logins
    usage: CallerUsage
    max_body_bytes: int
    login_by_url: bool
    overviews: SharedReads
    # What every page shows on top, such as an error of a reload; None for nothing.
    banner: Callable[[], str | None] | None

    async def services(self) -> Any:
        """Return what operations work with."""
        ...


@dataclass(frozen=True, slots=True)
class PageCall:
    """One request for a page."""

    request: Request
    backstage: Backstage
    principal: Principal
    query: Fields
    form: Fields

    @property
    def base(self) -> str:
        """The path that all pages are below."""
        return cookie_path(self.request)

    def param(self, name: str, default: str = "") -> str:
        """Return a parameter of the URL."""
        return _last(self.query, name, default)

    def given(self, name: str, default: str = "") -> str:
        """Return a field of the form."""
        return _last(self.form, name, default)

    @property
    def task(self) -> dict[str, str]:
        """The session and the task of the URL."""
        return {"session": self.param("session"), "task": self.param("task")}

    async def perform(self, operation: Operation, **given: Any) -> Any:
        """Call an operation as who looks. Errors: HttpProblem."""
        services = await self.backstage.services()
        try:
            return await perform(operation, services, self.principal, **given)
        except RedisStateError as error:
            raise problem_of(error) from error

    async def section(self, operation: Operation, **given: Any) -> Any:
        """Call an operation for one part of a page; None if who looks may not see it."""
        try:
            return await self.perform(operation, **given)
        except HttpProblem as problem:
            if problem.status in (403, 404):
                return None
            raise

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Render a page for who looks."""
        return html_response(template, status, **self.values(), **values)

    def values(self) -> dict[str, Any]:
        """Return what every template may use."""
        banner = self.backstage.banner
        return {
            "base": self.base,
            "subject": self.principal.subject,
            "principal": self.principal,
            "form_token": self.backstage.logins.form_token(self.request, self.principal),
            "form_key": secrets.token_urlsafe(16),
            "banner": None if banner is None else banner(),
            "said": _SAID.get(self.param("said")),
        }

    def go(self, page: str, **query: Any) -> Response:
        """Send the browser to a page after a form."""
        text = write_query(query)
        return RedirectResponse(f"{self.base}{page}" + (f"?{text}" if text else ""), 303)


# What a page says after a form. The URL has the name only.
_SAID = {
    "approved": "Approved.",
    "rejected": "Rejected.",
    "delegated": "The vote was handed on.",
    "steered": "The event was sent.",
    "cancelled": "The task is cancelled, or will be at its next checkpoint.",
    "retried": "The task was reopened.",
    "rerun": "This is the new task.",
    "forked": "This is the fork.",
    "paused": "Paused.",
    "resumed": "Resumed.",
    "triggered": "This is the task of the schedule.",
}

PageEndpoint = Callable[[PageCall], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page, or what a form is sent to. ``path`` is below the console's."""

    method: str
    path: str
    endpoint: PageEndpoint = field(repr=False)
    # Whether it is for everybody, such as the form to log in.
    public: bool = False
    # A form of this page may have as many bytes as this, if that is more than any body may have.
    form_bytes: int = 0


class PageRoute(BaseRoute):
    """The pages of one path."""

    def __init__(self, backstage: Backstage, path: str, pages: Sequence[ConsolePage]) -> None:
        self.path: str = f"/console{path}"
        self._backstage = backstage
        self._pages = {each.method: each for each in pages}
        if "GET" in self._pages:
            self._pages.setdefault("HEAD", self._pages["GET"])
        self._parts = self.path.strip("/").split("/")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare a request's path and method."""
        parts = read_parts(scope) if scope["type"] == "http" else None
        if parts is None:
            return Match.NONE, {}
        # With and without a slash at the end.
        given = list(parts[:-1]) if parts and parts[-1] == "" else list(parts)
        if given != self._parts or scope["method"] not in self._pages:
            return Match.NONE, {}
        return Match.FULL, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive)
        response = await _serve(self._backstage, self._pages[scope["method"]], request)
        await response(scope, receive, send)


class NoPage(BaseRoute):
    """Every other path below the console's: a browser is shown a page there too.

    It is for everybody, and shows nothing of the path.
    """

    def __init__(self, backstage: Backstage) -> None:
        self._backstage = backstage

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Look at the begin of a request's path, and whether a browser asks for a page."""
        parts = read_parts(scope) if scope["type"] == "http" else None
        if not parts or parts[0] != "console":
            return Match.NONE, {}
        accepted = Headers(scope=scope).get("accept", "")
        return Match.FULL if "text/html" in accepted else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        call = PageCall(Request(scope, receive), self._backstage, _NOBODY, {}, {})
        problem = HttpProblem(404, "not_found", "there is no such page")
        await problem_page(call, problem)(scope, receive, send)


async def _serve(backstage: Backstage, page: ConsolePage, request: Request) -> Response:
    call = PageCall(request, backstage, _NOBODY, {}, {})
    try:
        principal = await _who(backstage, page, request)
        if principal is None:
            return _to_login(call)
        call = PageCall(request, backstage, principal, _read_query(request), {})
        if page.method == "POST":
            most = max(backstage.max_body_bytes, page.form_bytes)
            form = await _read_form(request, most=most)
            call = PageCall(request, backstage, principal, call.query, form)
            if not page.public:
                backstage.logins.check_form(request, principal, call.given("form_token"))
        return await page.endpoint(call)
    except HttpProblem as problem:
        return problem_page(call, problem)
    except RedisStateError as error:
        return problem_page(call, problem_of(error))
    except TimeoutError:
        return problem_page(call, HttpProblem(504, "timeout", "this took too long"))
    except Exception as error:  # noqa: BLE001 - its text may hold a payload, and stays here
        frames = "".join(traceback.format_tb(error.__traceback__))
        log.error("%s: %s\n%s", page.path, type(error).__name__, frames)  # noqa: TRY400
        return problem_page(call, HttpProblem(500, "internal", "this page has failed"))


_NOBODY = Principal("anonymous")


async def _who(backstage: Backstage, page: ConsolePage, request: Request) -> Principal | None:
    if page.public:
        return _NOBODY
    found = await backstage.logins.authenticate(request)
    if found is not None:
        backstage.usage.take(f"subject {found.subject}")
    return found


def problem_page(call: PageCall, problem: HttpProblem) -> Response:
    """Render an error, and what a person wrote into the form that was refused."""
    # A page that may not be kept is not filled in again when a browser goes back to it.
    written = [
        text
        for name, texts in call.form.items()
        if _WRITTEN.fullmatch(name)
        for text in texts
        if text
    ]
    response = call.page("problem.html", status=problem.status, problem=problem, written=written)
    response.headers.update(problem.headers)
    return response


def _to_login(call: PageCall) -> Response:
    request = call.request
    if request.method not in ("GET", "HEAD"):
        raise HttpProblem(401, "unauthenticated", "log in first: your login has ended")
    if request.headers.get("hx-request") or "event-stream" in request.headers.get("accept", ""):
        raise HttpProblem(401, "unauthenticated", "log in again: your login has ended")
    raw = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("latin-1").rpartition("/console")[2]
    query = request.scope.get("query_string", b"").decode("latin-1")
    back = path + (f"?{query}" if query else "")
    return call.go("/login", back=back if back not in ("", "/") else None)


def _read_query(request: Request) -> Fields:
    raw = request.scope.get("query_string", b"").decode("latin-1")
    return _fields(raw)


async def _read_form(request: Request, *, most: int) -> Fields:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise HttpProblem(415, "unsupported_media_type", "a form is needed")
    body = await read_body(request, most=most)
    return _fields(body.decode("latin-1"))


def _fields(raw: str) -> Fields:
    try:
        pairs = parse_qsl(
            raw, keep_blank_values=True, errors="surrogatepass", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise HttpProblem(400, "malformed", "this is no form") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _last(fields: Fields, name: str, default: str) -> str:
    values = fields.get(name)
    return values[-1] if values else default
