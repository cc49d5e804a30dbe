"""Who looks at a page: a cookie that a credential was exchanged for, once.

A browser sends no Authorization header by itself. The cookie has the credential, sealed, and lasts
at most as long as that. Each request is authenticated by it: a key that was removed, or lost a
scope, is so here too. A form carries a token that is made from the cookie: no page of another
origin can know it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from redis_state.gateway.answers import HttpProblem, not_known_now
from redis_state.gateway.auth.jwt import Secrets
from redis_state.gateway.auth.open import is_loopback
from redis_state.gateway.auth.principal import Authenticator, Principal, Unauthenticated, bearer
from redis_state.gateway.console.login.cookies import SealedLogin, open_login, seal_login
from redis_state.gateway.console.options import ConsoleOptions
from redis_state.gateway.requests.guard import name_of_host

COOKIE = "redis_state_console"
# Browsers refuse larger cookies without a word.
_LARGEST_COOKIE = 3_800
_LONGEST_CREDENTIAL = 8_192


class Logins:
    """Makes and reads the cookies of the console."""

    def __init__(self, auth: Authenticator, options: ConsoleOptions) -> None:
        self._auth = auth
        self._session = options.session
        # A cookie, or a form, that another process made is to be sent to this one too.
        own = secrets.token_urlsafe(48) if options.secret is None else options.secret
        self._secrets = Secrets(own)

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return who looks at a page: by the cookie, else as the gateway knows callers."""
        try:
            if bearer(connection) is None and COOKIE in connection.cookies:
                found = await self._by_cookie(connection)
                if found is not None:
                    return found
            found = await self._auth.authenticate(connection)
        except Unauthenticated as error:
            _raise_if_passing(error)
            return None
        return None if found is None or found.expired() else found

    async def exchange(self, request: Request, credential: str) -> tuple[str, timedelta] | None:
        """Return a cookie's value for a credential, and how long it lasts; None if it is refused.

        Errors: HttpProblem, 422, for one that is too long for a cookie.
        """
        credential = credential.strip()
        principal = await self._principal_of(request, credential)
        if principal is None:
            return None
        now, lasts = datetime.now(UTC), self._session
        if principal.expires_at is not None:
            lasts = min(lasts, principal.expires_at - now)
        lasts = max(lasts, timedelta(seconds=1))
        cookie = seal_login(self._secrets, SealedLogin(credential, now + lasts))
        if len(cookie) > _LARGEST_COOKIE:
            raise HttpProblem(
                422, "credential_too_long", "this credential is too long for a cookie"
            )
        return cookie, lasts

    def form_token(self, connection: HTTPConnection, principal: Principal) -> str:
        """Return what a form of this login has to carry."""
        return self._form_tokens(connection, principal)[0]

    def check_form(self, connection: HTTPConnection, principal: Principal, given: str) -> None:
        """Require the token of a form. Errors: HttpProblem, 403."""
        # Also one that was rendered before a new secret came.
        known = self._form_tokens(connection, principal)
        sent = given.encode("utf-8", "replace")
        if not any(hmac.compare_digest(each.encode(), sent) for each in known):
            message = "this form is of another login: reload the page"
            raise HttpProblem(403, "stale_form", message)

    def _form_tokens(self, connection: HTTPConnection, principal: Principal) -> list[str]:
        cookie = connection.cookies.get(COOKIE, "")
        about = f"{principal.subject}\n{cookie}".encode("utf-8", "surrogatepass")
        keys = self._secrets.derived("forms")
        return [hmac.new(key, about, hashlib.sha256).hexdigest() for key in keys]

    async def _by_cookie(self, connection: HTTPConnection) -> Principal | None:
        login = open_login(self._secrets, connection.cookies[COOKIE])
        if login is None:
            return None
        found = await self._principal_of(connection, login.credential)
        if found is None:
            return None
        ends = min(login.expires_at, found.expires_at or login.expires_at)
        found = replace(found, expires_at=ends)
        return None if found.expired() else found

    async def _principal_of(self, connection: HTTPConnection, credential: str) -> Principal | None:
        if not 0 < len(credential) <= _LONGEST_CREDENTIAL or not credential.isascii():
            return None
        scope: dict[str, Any] = dict(connection.scope)
        scope["headers"] = [(b"authorization", b"Bearer " + credential.encode())]
        # A connection without its client: who is known by an address gave no credential.
        scope["client"] = None
        try:
            found = await self._auth.authenticate(HTTPConnection(scope))
        except Unauthenticated as error:
            _raise_if_passing(error)
            return None
        return None if found is None or found.expired() else found


def _raise_if_passing(error: Unauthenticated) -> None:
    """Errors: HttpProblem, 503, if the credential cannot be judged at the moment."""
    if error.passing:
        raise not_known_now(error.reason) from None


def remember(
    response: Response, request: Request, token: str, lasts: timedelta, *, by_link: bool
) -> None:
    """Set the cookie. Links of other pages send it only where people log in ``by_link``."""
    local = is_loopback(name_of_host(request.headers.get("host", "")).strip("[]"))
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(lasts / timedelta(seconds=1)),
        path=cookie_path(request),
        # A proxy of this machine may ask by its address what it serves by HTTPS.
        secure=request.url.scheme == "https" or not local,
        httponly=True,
        samesite="lax" if by_link else "strict",
    )


def forget(response: Response, request: Request) -> None:
    """Remove the cookie."""
    response.delete_cookie(COOKIE, path=cookie_path(request), httponly=True, samesite="strict")


def cookie_path(request: Request) -> str:
    """Return the path of the console below the gateway's mount."""
    return f"{quote(request.scope.get('root_path', ''), safe='/')}/console"
