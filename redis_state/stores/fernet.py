"""The seal by Fernet: AES and an HMAC, by `cryptography`, which comes with the ``crypto`` extra."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet


class FernetSeal:
    """Seals under the first key; opens under any, so that keys can be replaced one by one."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def close(self, plain: bytes) -> bytes:
        """Seal bytes."""
        return self._fernet.encrypt(plain)

    def open(self, sealed: bytes) -> bytes | None:
        """Open sealed bytes; None if none of the keys has sealed them."""
        try:
            return self._fernet.decrypt(sealed)
        except InvalidToken:
            return None
