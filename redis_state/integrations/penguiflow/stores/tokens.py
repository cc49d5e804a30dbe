"""PenguiFlow's token store on Redis: `OAuthManager(..., token_store=create_token_store())`."""

from __future__ import annotations

from typing import Any

from redis_state.integrations.penguiflow.adapter.standalone import StandaloneStore
from redis_state.settings import Settings, make_settings
from redis_state.stores.hosts.oauth_tokens import OAuthTokenStore


class PenguiflowTokenStore(StandaloneStore):
    """OAuth tokens of users, shared by all processes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._tokens = OAuthTokenStore(self.base)

    async def store(
        self, user_id: str, provider: str, token: str, expires_at: float | None
    ) -> None:
        """Keep a token, in place of the one before, until it expires on the server's clock.

        One that has expired already takes the one before away. With None it does not expire and
        is kept `oauth_token_ttl`. Errors: InvalidField, which never quotes the token.
        """
        await self._tokens.store(user_id, provider, token, expires_at)

    async def get(self, user_id: str, provider: str) -> str | None:
        """Return the token, or None if there is none or it has expired.

        Errors: ConfigError if it is sealed and none of `oauth_token_keys` opens it; CorruptState.
        """
        return await self._tokens.get(user_id, provider)

    async def delete(self, user_id: str, provider: str) -> None:
        """Delete the token, if there is one."""
        await self._tokens.delete(user_id, provider)


def create_token_store(*, url: str | None = None, **options: Any) -> PenguiflowTokenStore:
    """Make the token store. No I/O; the first call connects.

    The server is ``url``, else ``REDIS_STATE_URL``; options are the fields of `Settings`, among
    them ``oauth_token_keys``, which seals the tokens. Errors: ConfigError names an option that
    cannot be used.
    """
    return PenguiflowTokenStore(make_settings(url, **options))
