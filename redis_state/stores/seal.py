"""Encryption at rest: what is sealed can be read by whoever has one of the keys."""

from __future__ import annotations

from typing import Protocol

from pydantic import SecretStr

from redis_state.errors import ConfigError


class Seal(Protocol):
    """Seals bytes under the first key, and opens what any of the keys has sealed."""

    def close(self, plain: bytes) -> bytes:
        """Seal bytes."""
        ...

    def open(self, sealed: bytes) -> bytes | None:
        """Open sealed bytes; None if none of the keys has sealed them."""
        ...


def make_seal(keys: SecretStr | None) -> Seal | None:
    """Make a seal of Fernet keys, separated by commas; None without any.

    Errors: ConfigError for a key of another form, or without the ``crypto`` extra. It never
    quotes a key.
    """
    listed = [key.strip() for key in (keys.get_secret_value() if keys else "").split(",")]
    if listed == [""]:
        return None
    try:
        from redis_state.stores.fernet import FernetSeal  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError("sealing needs cryptography: install redis_state[crypto]") from None
    try:
        return FernetSeal(listed)
    except ValueError:
        problem = "each key must be 32 bytes in URL-safe base64, as Fernet.generate_key() makes it"
    raise ConfigError(f"oauth_token_keys: {problem}")
