"""Tokens for browsers: made by the user's own backend, narrow and short.

tokens = BrowserTokens(secret)
tokens.mint("ann", ["read:session:s-1", "steer:session:s-1"])
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from starlette.requests import HTTPConnection

from redis_state.errors import InvalidField
from redis_state.gateway.auth.jwt import SecretKeys, Secrets, principal_of, read_token
from redis_state.gateway.auth.principal import Principal, bearer, read_scopes
from redis_state.models.tasks import new_id

LIFETIME = timedelta(minutes=15)
_LONGEST = timedelta(hours=12)
_AUDIENCE = "redis-state/browser"


class BrowserTokens:
    """Mints tokens, and knows callers by them.

    ``keys`` is a secret of 32 bytes or more, or several by ``kid``: see `Secrets`. A `Path` names a
    file of them, which is read again when it changes. ``audience``
    separates deployments that share a secret. ``cookie`` is the name of a cookie that may have the
    token in place of the header.
    """

    def __init__(
        self,
        keys: SecretKeys,
        *,
        audience: str = "",
        cookie: str | None = None,
    ) -> None:
        self._keys = Secrets(keys)
        self._audience = f"{_AUDIENCE}/{audience}" if audience else _AUDIENCE
        self._cookie = cookie

    def mint(self, subject: str, scopes: Iterable[str], *, ttl: timedelta = LIFETIME) -> str:
        """Make a token for a subject. It has these scopes only: there is no default.

        Errors: InvalidField.
        """
        given = cast("Any", ttl)
        if not isinstance(given, timedelta) or not timedelta(seconds=1) <= given <= _LONGEST:
            raise InvalidField("ttl", f"must be a timedelta from a second to {_LONGEST}")
        principal = Principal(subject, read_scopes(list(scopes)))
        now = datetime.now(UTC)
        return self._keys.sign(
            {
                "sub": principal.subject,
                "scopes": sorted(map(str, principal.scopes)),
                "aud": self._audience,
                "iat": now,
                "exp": now + ttl,
                "jti": new_id(),
            }
        )

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return the caller. Errors: Unauthenticated."""
        token = bearer(connection)
        if token is None and self._cookie is not None:
            token = connection.cookies.get(self._cookie)
        if token is None or token.count(".") != 2:  # noqa: PLR2004 - header, claims, signature
            return None
        claims = await read_token(token, self._keys, audience=self._audience, needed=("sub",))
        return principal_of(claims, lambda found: found.get("scopes", ()))
