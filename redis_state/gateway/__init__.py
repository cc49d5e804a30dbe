"""The gateway: tasks, streams and approvals over HTTP. Needs the extras ``gateway``, ``worker``."""

from __future__ import annotations

from redis_state.gateway.app import Gateway, create_gateway
from redis_state.gateway.auth.api_keys import ApiKey, ApiKeys, make_api_key
from redis_state.gateway.auth.browser_tokens import BrowserTokens
from redis_state.gateway.auth.hook_links import HookLinks
from redis_state.gateway.auth.jwt import JwtAuthenticator
from redis_state.gateway.auth.open import AnyOf, Loopback, Public
from redis_state.gateway.auth.principal import (
    AccessScope,
    Authenticator,
    Principal,
    Right,
    Unauthenticated,
)
from redis_state.gateway.console.options import ConsoleOptions
from redis_state.gateway.requests.limits import GatewayLimits

__all__ = [
    "AccessScope",
    "AnyOf",
    "ApiKey",
    "ApiKeys",
    "Authenticator",
    "BrowserTokens",
    "ConsoleOptions",
    "Gateway",
    "GatewayLimits",
    "HookLinks",
    "JwtAuthenticator",
    "Loopback",
    "Principal",
    "Public",
    "Right",
    "Unauthenticated",
    "create_gateway",
    "make_api_key",
]
