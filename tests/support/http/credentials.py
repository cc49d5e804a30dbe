"""Callers by their credentials: what a gateway answers to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from redis_state import RedisStateStore
from redis_state.gateway import create_gateway
from tests.support.http.gateway import stranger


async def status_of(
    store: RedisStateStore, auth: Any, *, path: str = "/v1/queues", **headers: str
) -> int:
    """Ask a gateway with these headers."""
    app = create_gateway(store, auth=auth)
    try:
        async with stranger(app, **headers) as http:
            response = await http.get(path)
            for value in headers.values():
                assert value.rpartition(" ")[2] not in response.text
            return response.status_code
    finally:
        await app.aclose()


def bearer_of(token: str) -> dict[str, str]:
    """Make the header of a token."""
    return {"authorization": f"Bearer {token}"}


def claims_of(**more: Any) -> dict[str, Any]:
    """Make the claims of a token of `BrowserTokens`."""
    claims: dict[str, Any] = {"sub": "ann", "scopes": ["read:*"], "aud": "redis-state/browser"}
    return claims | {"exp": datetime.now(UTC) + timedelta(minutes=1)} | more
