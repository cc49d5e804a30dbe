"""Page tokens: a place in a list, signed for the list that it was given for.

A token names the place to read on after, so it stays valid when the task there changes or goes. The
secret is made once per namespace and shared by all servers. Unused for 30 days it expires, and
earlier tokens are refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets

from redis_state.errors import InvalidField
from redis_state.stores.base import Base

_SECRET_TTL_MS = 30 * 24 * 3600 * 1000
_MAC_BYTES = 16
# A token holds an id, and those have no limit.
_LONGEST = 1 << 20


class PageTokens:
    """Seal and open the page tokens of a namespace. ``about`` is what a token's list is of."""

    def __init__(self, base: Base) -> None:
        self._base = base

    async def seal(self, place: str, *about: object) -> str:
        """Return the token of a place; no token for no place."""
        if not place:
            return ""
        data = place.encode("utf-8", "surrogatepass")
        mac = _mac(await self._secret(), data, about)
        return base64.urlsafe_b64encode(mac + data).decode().rstrip("=")

    async def open(self, token: str, *about: object) -> str:
        """Return the place of a token; no place for no token.

        Errors: InvalidField for a token of another list, a changed one, or one that is too old.
        """
        if not token:
            return ""
        refused = InvalidField("page_token", "not a page token of this list, or too old")
        if len(token) > _LONGEST:
            raise refused
        try:
            sealed = base64.b64decode(
                token + "=" * (-len(token) % 4), altchars=b"-_", validate=True
            )
        except (binascii.Error, ValueError):
            raise refused from None
        data = sealed[_MAC_BYTES:]
        mac = _mac(await self._secret(), data, about)
        if not data or not hmac.compare_digest(mac, sealed[:_MAC_BYTES]):
            raise refused
        return data.decode("utf-8", "surrogatepass")

    async def _secret(self) -> bytes:
        commands = self._base.scripts.transport.commands
        key = self._base.keys.a2a_page_secret()
        # The first of them stands. Reading it renews its lifetime.
        await commands.set_if_absent(key, secrets.token_bytes(32), _SECRET_TTL_MS)
        found: bytes = await commands.get_and_renew(key, _SECRET_TTL_MS)
        return found


def _mac(secret: bytes, place: bytes, about: tuple[object, ...]) -> bytes:
    message = repr(about).encode("utf-8", "surrogatepass") + b"\0" + place
    return hmac.digest(secret, message, "sha256")[:_MAC_BYTES]
