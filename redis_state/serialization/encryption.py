"""Encryption at rest with Fernet: AES and an HMAC."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import SecretStr

from redis_state.errors import ConfigError


class Cipher:
    """Encrypt under the first key; decrypt with any, so that keys can be replaced one by one.

    Needs the ``crypto`` extra. Errors: ImportError without it, ValueError for a key that is none.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        from cryptography.fernet import Fernet, InvalidToken, MultiFernet  # noqa: PLC0415 - an extra

        self._fernet = MultiFernet([Fernet(key) for key in keys])
        self._invalid: type[Exception] = InvalidToken

    def encrypt(self, plain: bytes) -> bytes:
        """Encrypt bytes."""
        return self._fernet.encrypt(plain)

    def decrypt(self, encrypted: bytes) -> bytes | None:
        """Decrypt bytes; None if they were encrypted with none of the keys."""
        try:
            return self._fernet.decrypt(encrypted)
        except self._invalid:
            return None


def make_cipher(keys: SecretStr | None, *, setting: str) -> Cipher | None:
    """Make a cipher of Fernet keys, separated by commas; None without any.

    Errors: ConfigError for a key of another form, or without the ``crypto`` extra. It never
    quotes a key.
    """
    if keys is None:
        return None
    try:
        return Cipher([key.strip() for key in keys.get_secret_value().split(",")])
    except ImportError:
        raise ConfigError(f"{setting}: needs cryptography: install redis_state[crypto]") from None
    except ValueError:
        problem = "each key must be 32 bytes in URL-safe base64, as Fernet.generate_key() makes it"
    raise ConfigError(f"{setting}: {problem}")
