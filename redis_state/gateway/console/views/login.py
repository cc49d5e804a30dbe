"""Logging in and out."""

from __future__ import annotations

import re
from contextlib import suppress

from starlette.responses import RedirectResponse, Response

from redis_state.gateway.answers import HttpProblem
from redis_state.gateway.console.login.logins import forget, remember
from redis_state.gateway.console.login.unsent import after_login, login_page
from redis_state.gateway.console.pages import ConsolePage, PageCall
from redis_state.gateway.requests.limits import address_of


async def show_login(call: PageCall) -> Response:
    """Show the form; exchange a credential of the URL where that is allowed."""
    back = _back(call)
    if call.backstage.login_by_url and "token" in call.query:
        return await _log_in(call, call.param("token"), back)
    if call.request.headers.get("sec-fetch-site") != "cross-site":
        known = None
        # One who cannot be judged now may have another credential.
        with suppress(HttpProblem):
            known = await call.backstage.logins.authenticate(call.request)
        if known is not None:
            return RedirectResponse(f"{call.base}{back}", 303)
    return login_page(call, back=back)


async def log_in(call: PageCall) -> Response:
    """Exchange a credential for a cookie; give back a form that was sent without a login."""
    return await _log_in(call, call.given("credential"), _back(call))


async def log_out(call: PageCall) -> Response:
    """Remove the cookie."""
    response = call.go("/login")
    forget(response, call.request)
    return response


async def _log_in(call: PageCall, credential: str, back: str) -> Response:
    sent_to = call.param("form") or None
    exchanged = await call.backstage.logins.exchange(call.request, credential)
    if exchanged is None:
        # Only these count: behind a proxy all people may have one address.
        call.backstage.usage.take(f"no login of {address_of(call.request)}")
        message = "This key is not known, or has expired."
        return login_page(call, back=back, sent_to=sent_to, message=message, status=401)
    response = None if sent_to is None else await after_login(call, exchanged[0], sent_to)
    if response is None:
        response = RedirectResponse(f"{call.base}{back}", 303)
    remember(response, call.request, *exchanged, by_link=call.backstage.login_by_url)
    return response


def _back(call: PageCall) -> str:
    """Return the page to go to afterwards. It is below the console's own path in every case."""
    back = call.param("back", "/")
    if not back.startswith(("/", "?")) or not back.isprintable() or "\\" in back:
        raise HttpProblem(400, "malformed", "this is no page of the console")
    # A browser takes percent-encoded dots for dots.
    path = re.sub("%2e", ".", back.partition("?")[0], flags=re.IGNORECASE)
    if not back.isascii() or "/../" in f"{path}/":
        raise HttpProblem(400, "malformed", "this is no page of the console")
    return back


PAGES = (
    ConsolePage("GET", "/login", show_login, public=True),
    ConsolePage("POST", "/login", log_in, public=True),
    ConsolePage("POST", "/logout", log_out),
)
