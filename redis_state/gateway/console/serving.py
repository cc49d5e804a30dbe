"""Serve requests for pages: who looks, the form that was sent, and errors as pages.

A form that was sent after its login has ended does nothing. The page to log in is its answer, and
keeps what was written into it. After the login the form has it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.auth.principal import Principal
from redis_state.gateway.console.login.unsent import ask_login, give_back
from redis_state.gateway.console.pages import (
    Backstage,
    ConsolePage,
    Fields,
    PageCall,
    problem_page,
    read_fields,
)
from redis_state.gateway.failures import problem_for
from redis_state.gateway.requests.limits import read_body
from redis_state.gateway.requests.paths import read_parts

_FORM = "application/x-www-form-urlencoded"
# A form to log in has a credential, beside the form that it keeps.
_LOGIN_BYTES = 16 << 10


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
        principal, refused = await _who(backstage, page, request)
        if page.method == "POST":
            # It is read of those who are refused too: what they wrote is given back.
            call = replace(call, form=await _form_of(call, page, principal))
        call = replace(call, principal=principal or _NOBODY)
        if principal is None:
            return _to_login(call, refused)
        call = replace(call, query=_read_query(request))
        return await _answer(call, page)
    except Exception as error:  # noqa: BLE001 - each is a page
        return problem_page(call, problem_for(page.path, error, failed="this page"))


async def _answer(call: PageCall, page: ConsolePage) -> Response:
    if page.method == "POST" and not page.public:
        try:
            token = call.given("form_token")
            call.backstage.logins.check_form(call.request, call.principal, token)
        except HttpProblem as stale:
            return await give_back(call, page, stale)
    return await page.endpoint(call)


_NOBODY = Principal("anonymous")


async def _who(
    backstage: Backstage, page: ConsolePage, request: Request
) -> tuple[Principal | None, HttpProblem | None]:
    """Return who looks, or why that is unknown or too much; neither for a stranger."""
    if page.public:
        return _NOBODY, None
    try:
        found = await backstage.logins.authenticate(request)
        if found is not None:
            backstage.usage.take(f"subject {found.subject}")
    except HttpProblem as problem:
        return None, problem
    return found, None


def _to_login(call: PageCall, refused: HttpProblem | None) -> Response:
    """Lead a stranger to the login. Errors: HttpProblem, also why a login was refused."""
    if refused is not None:
        raise refused
    request = call.request
    if request.method not in ("GET", "HEAD"):
        return ask_login(call)
    if request.headers.get("hx-request") or "event-stream" in request.headers.get("accept", ""):
        raise HttpProblem(401, "unauthenticated", "log in again: your login has ended")
    here = call.here
    return call.go("/login", back=here if here not in ("", "/") else None)


def _read_query(request: Request) -> Fields:
    raw = request.scope.get("query_string", b"").decode("latin-1")
    return read_fields(raw)


async def _form_of(call: PageCall, page: ConsolePage, principal: Principal | None) -> Fields:
    """Read the form of a request; of one that is refused, nothing if it cannot be read."""
    usual = call.backstage.max_body_bytes
    if page.public:
        return await _read_form(call.request, most=usual + _LOGIN_BYTES)
    if principal is not None:
        return await _read_form(call.request, most=max(usual, page.form_bytes))
    with suppress(HttpProblem):
        return await _read_form(call.request, most=usual)
    return {}


async def _read_form(request: Request, *, most: int) -> Fields:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise HttpProblem(415, "unsupported_media_type", "a form is needed")
    body = await read_body(request, most=most)
    return read_fields(body.decode("latin-1"))
