"""Pages: a method and a path, and what renders it. Errors are pages too.

A page does what it shows through the operations of the gateway, under the rights of who looks.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from redis_state.errors import RedisStateError
from redis_state.gateway.answers import HttpProblem, problem_of
from redis_state.gateway.auth.principal import Principal
from redis_state.gateway.calls import Operation, perform
from redis_state.gateway.console.login.logins import Logins, cookie_path
from redis_state.gateway.console.rendering import html_response, write_query
from redis_state.gateway.console.shared import SharedReads
from redis_state.gateway.requests.limits import CallerUsage

_MOST_FIELDS = 2_000
# What a form asks a person for. Others are its own, such as its token and the tasks chosen.
_WRITTEN = re.compile(r"text|value|reason|to|f[0-9]+")
_LONGEST_KEY = 60
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

    def page_of_form(self, path: str) -> ConsolePage | None:
        """Return what a form is sent to."""
        ...


@dataclass(frozen=True, slots=True)
class PageCall:
    """One request for a page."""

    request: Request
    backstage: Backstage
    principal: Principal
    query: Fields
    form: Fields
    # What the page says on top, in place of what its URL names.
    notice: str | None = None

    @property
    def base(self) -> str:
        """The path that all pages are below."""
        return cookie_path(self.request)

    @property
    def here(self) -> str:
        """The page of the request with its query, below all pages."""
        request = self.request
        raw = request.scope.get("raw_path") or request.url.path.encode()
        path = raw.partition(b"?")[0].decode("latin-1").rpartition("/console")[2]
        query = request.scope.get("query_string", b"").decode("latin-1")
        return path + (f"?{query}" if query else "")

    def param(self, name: str, default: str = "") -> str:
        """Return a parameter of the URL."""
        return _last(self.query, name, default)

    def given(self, name: str, default: str = "") -> str:
        """Return a field of the form."""
        return _last(self.form, name, default)

    @property
    def unsent(self) -> list[str]:
        """What a person wrote into the form."""
        written = [texts for name, texts in self.form.items() if _WRITTEN.fullmatch(name)]
        return [text for texts in written for text in texts if text]

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
            "form_key": self._form_key(),
            "banner": None if banner is None else banner(),
            "said": self.notice or _SAID.get(self.param("said")),
            "unsent": self.unsent,
        }

    def _form_key(self) -> str:
        """Return the key of the page's forms: that of a form that is given back stays."""
        given = self.given("form_key")
        if 0 < len(given) <= _LONGEST_KEY and given.isascii() and given.isprintable():
            return given
        return secrets.token_urlsafe(16)

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
    # Shows the page of a form with what was written into it, and changes nothing.
    shown: PageEndpoint | None = field(default=None, repr=False)


def problem_page(call: PageCall, problem: HttpProblem) -> Response:
    """Render an error, and what a person wrote into the form that was refused."""
    # A page that may not be kept is not filled in again when a browser goes back to it.
    response = call.page("problem.html", status=problem.status, problem=problem)
    response.headers.update(problem.headers)
    return response


def read_fields(raw: str) -> Fields:
    """Read the fields of a query or a form. Errors: HttpProblem, 400."""
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
