"""Access without credentials, which has to be named; and several ways at once."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.requests import HTTPConnection

from redis_state.errors import InvalidField
from redis_state.gateway.auth.principal import (
    AccessScope,
    Authenticator,
    Principal,
    Unauthenticated,
)

# How this machine is named in URLs.
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
# In which a proxy names its client, or a caller anybody: a server may take the address from there.
_FORWARDED = ("forwarded", "x-forwarded-for")


class Public:
    """Everybody is this principal. For what shall be open, and has a guard in front of it."""

    def __init__(self, *, subject: str, scopes: Iterable[AccessScope | str]) -> None:
        self._principal = Principal(subject, frozenset(map(_scope, scopes)))

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return the principal."""
        del connection
        return self._principal


class Loopback(Public):
    """Everybody of this machine is this principal: development only.

    A request with ``X-Forwarded-For`` or ``Forwarded`` is refused, whatever address it has by
    then. What a proxy of this machine passes on without them comes from this machine too. Only
    `LOCAL_NAMES` are served, unless a gateway is given others: a page of any site could ask under a
    name of its own.
    """

    def __init__(
        self, *, subject: str = "loopback", scopes: Iterable[AccessScope | str] = ("admin:*",)
    ) -> None:
        super().__init__(subject=subject, scopes=scopes)

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return the principal for a caller of this machine."""
        client = connection.client
        if client is None or not is_loopback(client.host):
            return None
        if any(name in connection.headers for name in _FORWARDED):
            return None
        return await super().authenticate(connection)


class AnyOf:
    """The first of several ways that knows the caller."""

    def __init__(self, *ways: Authenticator) -> None:
        if not ways:
            raise InvalidField("ways", "needs one authenticator or more")
        self.ways: tuple[Authenticator, ...] = ways

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return the caller. Errors: Unauthenticated if no way knows the caller: the first, or
        that of a way that may know the caller soon.
        """
        refused: Unauthenticated | None = None
        for way in self.ways:
            try:
                found = await way.authenticate(connection)
            except Unauthenticated as error:
                refused = error if refused is None or error.passing else refused
                continue
            if found is not None:
                return found
        if refused is not None:
            raise refused
        return None


def has_loopback(auth: Authenticator) -> bool:
    """Return whether callers of this machine need no credentials."""
    if isinstance(auth, AnyOf):
        return any(map(has_loopback, auth.ways))
    return isinstance(auth, Loopback)


def is_loopback(host: str) -> bool:
    """Return whether an address is one of this machine's own."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _scope(given: AccessScope | str) -> AccessScope:
    return given if isinstance(given, AccessScope) else AccessScope.read(given)
