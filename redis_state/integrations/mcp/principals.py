"""Who calls an MCP server, as the SDK's authentication knows it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context

from redis_state.serialization import codec


def principal_of(user: object) -> str:
    """Return a short digest of a user's client, issuer and subject; empty without a user.

    Two tokens of one user are one principal.
    """
    if not isinstance(user, AuthenticatedUser):
        return ""
    known = authorization_context(user)
    return codec.fingerprint("mcp principal", known["client_id"], known["issuer"], known["subject"])


def principal_of_request(scope: MutableMapping[str, Any]) -> str:
    """Return the principal of an HTTP request. See `principal_of`."""
    return principal_of(scope.get("user"))


def current_principal() -> str:
    """Return the principal whose request is being handled. See `principal_of`."""
    return principal_of(auth_context_var.get())
