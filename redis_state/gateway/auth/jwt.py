"""JWT of an identity provider: HS256 with keys by ``kid``, or the public keys of a JWKS.

The algorithms of a key are fixed by its kind. What a token says of its own algorithm only has to
agree: so neither ``none`` nor a public key taken for a secret is accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import jwt
from starlette.requests import HTTPConnection

from redis_state.errors import ConfigError, InvalidField
from redis_state.gateway.auth.files import WatchedFile, read_secrets
from redis_state.gateway.auth.principal import Principal, Unauthenticated, bearer, read_scopes

log: logging.Logger = logging.getLogger(__name__)

ASYMMETRIC = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_SHORTEST_SECRET = 32
_LEEWAY_S = 5
_LOCAL = ("127.0.0.1", "localhost", "::1")
_LONGEST = 16_384

# A secret, several by ``kid``, or the file of them, which is read again when it changes.
SecretKeys: TypeAlias = Mapping[str, str] | str | Path
ReadScopes = Callable[[Mapping[str, Any]], Iterable[str]]


class Keyring(Protocol):
    """The keys of an issuer."""

    async def key(self, token: str, header: Mapping[str, Any]) -> tuple[Any, Sequence[str]]:
        """Return a token's key and its algorithms. Errors: Unauthenticated."""
        ...


class Secrets:
    """Shared secrets by ``kid``, the first one signs.

    To rotate: add the new one second. When all processes have it, make it the first. After the
    longest lifetime of a token, remove the old one.
    """

    def __init__(self, keys: SecretKeys) -> None:
        self._keys: Callable[[], dict[str, str]]
        if isinstance(keys, Path):
            self._keys = WatchedFile(keys, lambda file: _named(read_secrets(file)))
        else:
            named = _named(keys)
            self._keys = lambda: named

    async def key(self, token: str, header: Mapping[str, Any]) -> tuple[Any, Sequence[str]]:
        """Return the secret of the token's ``kid``; without one, the only secret."""
        del token
        kid, keys = header.get("kid"), self._keys()
        if kid is None and len(keys) == 1:
            return next(iter(keys.values())), ("HS256",)
        found = keys.get(kid) if isinstance(kid, str) else None
        if found is None:
            raise Unauthenticated("the token was signed with a key that is not known")
        return found, ("HS256",)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Sign claims with the first secret."""
        kid, secret = next(iter(self._keys().items()))
        return jwt.encode(dict(claims), secret, algorithm="HS256", headers={"kid": kid})

    def derived(self, purpose: str) -> list[bytes]:
        """Make a key for another purpose of each secret; that of the first one stands first."""
        return [
            hashlib.sha256(f"{purpose} {secret}".encode()).digest()
            for secret in self._keys().values()
        ]


def _named(keys: Mapping[str, str] | str) -> dict[str, str]:
    named = {"1": keys} if isinstance(keys, str) else dict(keys)
    if not named:
        raise ConfigError("a secret is needed to sign tokens")
    if any(len(secret.encode()) < _SHORTEST_SECRET for secret in named.values()):
        raise ConfigError(f"a secret that signs tokens needs {_SHORTEST_SECRET} bytes or more")
    return named


class Jwks:
    """The public keys of a URL, fetched when a token names one that is not known yet.

    Keys are fetched again after ``lifespan_s``. The call that begins the fetch does not wait for
    it, unless its key is unknown or older than two lifespans: a key that the issuer has removed is
    refused after that. While the URL cannot be read, known keys hold for an hour, and nobody waits
    for them: a fetch that failed says so for one lifespan. There is one fetch at a time, and at
    most one in ten seconds, whatever tokens say.

    A server that sends a byte now and then has no end, and no timeout ends it. So a call waits for
    as long as connecting and answering may take, and a fetch is given up after a minute. Its thread
    works on. While there are eight of these, no other one begins.
    """

    _AGAIN_S = 10.0
    _LONGEST_S = 3_600.0
    _LONGEST_FETCH_S = 60.0
    _MOST_FETCHES = 8

    def __init__(self, url: str, *, lifespan_s: float = 300.0, timeout_s: float = 5.0) -> None:
        if not _is_trusted(url):
            raise ConfigError("the URL of a JWKS begins with https://")
        self._client = jwt.PyJWKClient(
            url, cache_keys=False, cache_jwk_set=False, timeout=timeout_s
        )
        self._lifespan_s = lifespan_s
        self._longest_wait_s = 2 * timeout_s
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = self._requested_at = -inf
        self._failed_at = -inf
        # Callers of several loops may wait for the same fetch.
        self._fetching: Future[None] | None = None
        self._begun: list[Future[None]] = []

    async def key(self, token: str, header: Mapping[str, Any]) -> tuple[Any, Sequence[str]]:
        """Return the key of the token's ``kid``. Errors: Unauthenticated."""
        del token
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(kid, str):
            raise Unauthenticated("the token names no key")
        if algorithm not in ASYMMETRIC:
            raise Unauthenticated("the token's algorithm is not that of its key")
        if kid not in self._keys or self._age() > self._lifespan_s:
            fetching = self._refresh()
            if fetching is not None and self._waits(kid):
                await self._wait(fetching)
        found = self._keys.get(kid)
        if found is None or self._age() > max(self._LONGEST_S, self._lifespan_s):
            if self._failed_at > -inf:
                raise Unauthenticated("the issuer's keys cannot be read now", passing=True)
            raise Unauthenticated("the token was signed with a key that is not known")
        if found.algorithm_name not in (None, algorithm):
            raise Unauthenticated("the token's algorithm is not that of its key")
        return found.key, (cast("str", algorithm),)

    def _age(self) -> float:
        return monotonic() - self._read_at

    def _waits(self, kid: str) -> bool:
        """Return whether a token cannot be judged by the keys that are known."""
        if kid not in self._keys or self._age() > max(self._LONGEST_S, self._lifespan_s):
            return True
        # In an outage a fetch takes its whole timeout, and gives nothing. One that failed long ago
        # says nothing of now.
        outage = monotonic() - self._failed_at < self._lifespan_s
        return self._age() > 2 * self._lifespan_s and not outage

    def _refresh(self) -> Future[None] | None:
        """Begin a fetch, or return the one that is under way; None if the last one is too new."""
        took = monotonic() - self._requested_at
        is_done = self._fetching is None or self._fetching.done()
        if took < (self._AGAIN_S if is_done else self._LONGEST_FETCH_S):
            return None if is_done else self._fetching
        self._requested_at = monotonic()
        self._begun = [each for each in self._begun if not each.done()]
        if len(self._begun) >= self._MOST_FETCHES:
            return self._fetching
        self._fetching = fetching = Future[None]()
        self._begun.append(fetching)
        fetching.set_running_or_notify_cancel()
        # No pool's: a process waits for those at its end.
        Thread(target=self._fetch, args=(fetching,), name="jwks", daemon=True).start()
        return fetching

    async def _wait(self, fetching: Future[None]) -> None:
        done, _ = await asyncio.wait({asyncio.wrap_future(fetching)}, timeout=self._longest_wait_s)
        if not done:
            self._failed_at = monotonic()

    def _fetch(self, fetching: Future[None]) -> None:
        keys: Sequence[jwt.PyJWK] | None = None
        try:
            keys = self._client.get_signing_keys(refresh=True)
        except Exception as error:  # noqa: BLE001 - whatever an issuer sends
            log.warning("the keys of the JWKS cannot be read: %s", type(error).__name__)
        # One that was given up says nothing of now.
        if self._fetching is fetching and keys is None:
            self._failed_at = monotonic()
        elif self._fetching is fetching and keys is not None:
            self._failed_at = -inf
            self._keys = {each.key_id: each for each in keys if each.key_id is not None}
            self._read_at = monotonic()
        fetching.set_result(None)


def _is_trusted(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    local = parts.scheme == "http" and parts.hostname in _LOCAL
    return bool(parts.hostname) and (parts.scheme == "https" or local)


class JwtAuthenticator:
    """Knows callers by ``Authorization: Bearer <JWT>`` of one issuer and for one audience.

    ``keys`` are secrets, by ``kid``, one, or a `Path` to a file of them, which is read again when
    it changes; or ``jwks_url`` has public keys. The subject is
    ``sub``. The scopes are those of the claim ``scope`` (text with spaces) or ``scopes`` (a list),
    or what ``scopes`` makes of the claims. Tokens need ``exp``, ``sub`` and ``aud``.
    """

    def __init__(
        self,
        keys: SecretKeys | None = None,
        *,
        audience: str,
        issuer: str | None = None,
        jwks_url: str | None = None,
        scopes: ReadScopes | None = None,
    ) -> None:
        if (keys is None) == (jwks_url is None):
            raise ConfigError("one of keys and jwks_url is needed")
        if not audience:
            raise ConfigError("audience: tokens of others would be accepted without one")
        self._keys: Keyring = Jwks(jwks_url) if jwks_url is not None else Secrets(keys or "")
        self._audience = audience
        self._issuer = issuer
        self._scopes = scopes or scopes_of

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return the caller. Errors: Unauthenticated."""
        token = bearer(connection)
        if token is None or token.count(".") != 2:  # noqa: PLR2004 - header, claims, signature
            return None
        claims = await read_token(
            token, self._keys, audience=self._audience, issuer=self._issuer, needed=("sub",)
        )
        return principal_of(claims, self._scopes)


async def read_token(
    token: str,
    keys: Keyring,
    *,
    audience: str,
    issuer: str | None = None,
    needed: Sequence[str] = (),
) -> dict[str, Any]:
    """Check a token's signature, audience, issuer and times; return its claims.

    Errors: Unauthenticated, without any part of the token.
    """
    if len(token) > _LONGEST:
        raise Unauthenticated("the token is too long")
    try:
        # Without the rest, which is read once, where it is verified.
        header = jwt.get_unverified_header(f"{token.partition('.')[0]}..")
    except jwt.PyJWTError:
        raise Unauthenticated("the token cannot be read") from None
    key, algorithms = await keys.key(token, header)
    try:
        return jwt.decode(
            token,
            key,
            algorithms=list(algorithms),
            audience=audience,
            issuer=issuer,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "aud", *needed, *(["iss"] if issuer else [])]},
        )
    except jwt.ExpiredSignatureError:
        raise Unauthenticated("the token has expired") from None
    except jwt.PyJWTError as error:
        raise Unauthenticated(f"the token is refused: {type(error).__name__}") from None


def principal_of(claims: Mapping[str, Any], scopes: ReadScopes) -> Principal:
    """Make a caller of a token's claims. Errors: Unauthenticated."""
    try:
        expires_at = datetime.fromtimestamp(float(claims["exp"]), UTC)
        return Principal(str(claims["sub"]), read_scopes(list(scopes(claims))), expires_at)
    except (InvalidField, ValueError, TypeError, OverflowError, OSError):
        raise Unauthenticated("the token's claims cannot be used") from None


def scopes_of(claims: Mapping[str, Any]) -> Iterable[str]:
    """Return the scopes of the claims ``scope`` or ``scopes``: those that are ours.

    A provider's own scopes, such as ``openid``, mean nothing here.
    """
    text, listed = claims.get("scope"), claims.get("scopes")
    given: list[Any] = text.split() if isinstance(text, str) else []
    if isinstance(listed, list):
        given += cast("Any", listed)
    return [each for each in given if isinstance(each, str) and _is_ours(each)]


def _is_ours(text: str) -> bool:
    try:
        read_scopes([text])
    except InvalidField:
        return False
    return True
