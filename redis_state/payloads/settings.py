"""Make what writes and reads payloads of the settings of a store."""

from __future__ import annotations

from importlib import import_module
from inspect import isclass
from typing import Any

from redis_state.errors import ConfigError
from redis_state.payloads.claims import open_claims
from redis_state.serialization.claim_store import ClaimStore
from redis_state.serialization.encryption import make_cipher
from redis_state.serialization.payloads import PayloadCodec, Payloads
from redis_state.settings import Settings


def make_payloads(settings: Settings) -> Payloads:
    """Make the payloads of a store. No I/O. Errors: ConfigError names the setting."""
    own: PayloadCodec | None = _named(settings, "payload_codec", "encode", "decode")
    claims: ClaimStore | None = _named(settings, "claim_check_store", "put", "get", "delete")
    if claims is None and settings.claim_check_url is not None:
        claims = open_claims(settings.claim_check_url)
    if settings.claim_check_bytes is not None and claims is None:
        raise ConfigError("claim_check_bytes: needs claim_check_url or claim_check_store")
    return Payloads(
        cipher=make_cipher(settings.payload_keys, setting="payload_keys"),
        own=own,
        max_bytes=settings.max_payload_bytes,
        claims=claims,
        claim_bytes=settings.claim_check_bytes,
        place=settings.namespace,
    )


def _named(settings: Settings, setting: str, *methods: str) -> Any:
    found = named_object(settings, setting)
    if found is None:
        return None
    if isclass(found):
        found = found()
    if not all(callable(getattr(found, method, None)) for method in methods):
        raise ConfigError(f"{setting}: needs the methods {', '.join(methods)}")
    return found


def named_object(settings: Settings, setting: str) -> Any:
    """Return what a setting has, imported if that is a name. Errors: ConfigError."""
    given = getattr(settings, setting)
    if not isinstance(given, str):
        return given
    module, _, name = given.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{setting}={given!r} cannot be imported: {error}") from None
