"""A user's OAuth tokens: one per provider, gone when it expires, sealed if there are keys.

What is sealed names its user and provider too, so that a token cannot be moved to another's place.
"""

from __future__ import annotations

import math

from redis_state.errors import ConfigError, CorruptState, InvalidField
from redis_state.scripts import raw
from redis_state.serialization import codec
from redis_state.serialization.encryption import make_cipher
from redis_state.serialization.fields import number, text
from redis_state.serialization.rows import pack, unpack
from redis_state.stores.base import Base, ms

_PLAIN, _SEALED = b"p", b"s"
# As much as a script's numbers hold exactly.
_LATEST_MS = 1 << 52


class OAuthTokenStore:
    """Store, get and delete tokens."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._cipher = make_cipher(base.settings.oauth_token_keys, setting="oauth_token_keys")

    async def store(
        self, user_id: str, provider: str, token: str, expires_at: float | None
    ) -> None:
        """Keep a token, in place of the one before, until it expires on the server's clock.

        One that has expired already takes the one before away. None does not expire: it is kept
        `oauth_token_ttl` after this call. Errors: InvalidField, which never quotes the token.
        """
        expires_ms = None
        if expires_at is not None:
            seconds = number("expires_at", expires_at)
            if not math.isfinite(seconds):
                raise InvalidField("expires_at", "a time in seconds is needed, or None")
            expires_ms = int(max(0, min(seconds * 1000, _LATEST_MS)))
        await self._base.scripts.save_oauth_token(
            self._base.keys.oauth_token(user_id, provider),
            value=self._write(user_id, provider, text("token", token)),
            expires_ms=expires_ms,
            ttl_ms=ms(self._base.settings.oauth_token_ttl),
        )

    async def get(self, user_id: str, provider: str) -> str | None:
        """Return the token, or None if there is none or it has expired.

        Errors: ConfigError if none of this process's keys opens it; CorruptState.
        """
        key = self._base.keys.oauth_token(user_id, provider)
        value: bytes | None = await self._base.scripts.transport.commands.get(key)
        return None if value is None else self._read(key, user_id, provider, value)

    async def delete(self, user_id: str, provider: str) -> bool:
        """Delete the token; return whether there was one."""
        key = self._base.keys.oauth_token(user_id, provider)
        reply = await self._base.scripts.delete(key)
        return bool(reply.facts[0])

    def _write(self, user_id: str, provider: str, token: str) -> bytes:
        if self._cipher is None:
            return _PLAIN + raw(token)
        return _SEALED + self._cipher.encrypt(pack([user_id, provider, token]))

    def _read(self, key: str, user_id: str, provider: str, value: bytes) -> str:
        kind, content = value[:1], value[1:]
        if kind == _PLAIN:
            # Stored before there were keys: read, and sealed when it is next stored.
            return content.decode("utf-8", "surrogatepass")
        if kind != _SEALED:
            raise CorruptState(key, "not a token")
        opened = self._cipher.decrypt(content) if self._cipher else None
        if opened is None:
            raise ConfigError(f"{key} is sealed, and none of oauth_token_keys opens it")
        return _named(key, user_id, provider, opened)


def _named(key: str, user_id: str, provider: str, opened: bytes) -> str:
    try:
        user, of, token = unpack(opened, 3)
    except codec.DecodeError:
        user = of = token = None
    if (user, of) != (user_id, provider) or not isinstance(token, str):
        raise CorruptState(key, "sealed for another user or provider")
    return token
