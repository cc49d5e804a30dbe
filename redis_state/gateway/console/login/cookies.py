"""The cookie of a login: a credential that only processes with the console's secret can read."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime

from redis_state.gateway.auth.jwt import Secrets
from redis_state.serialization.encryption import Cipher


@dataclass(frozen=True, slots=True)
class SealedLogin:
    """What a cookie has."""

    credential: str = field(repr=False)
    expires_at: datetime


def seal_login(keys: Secrets, login: SealedLogin) -> str:
    """Write a login as a cookie's value."""
    written = json.dumps([login.credential, login.expires_at.timestamp()]).encode()
    return _cipher(keys).encrypt(zlib.compress(written)).rstrip(b"=").decode()


def open_login(keys: Secrets, cookie: str) -> SealedLogin | None:
    """Read a cookie's value; None for one that was not made with one of the secrets."""
    padded = cookie.encode(errors="replace") + b"=" * (-len(cookie) % 4)
    written = _cipher(keys).decrypt(padded)
    if written is None:
        return None
    credential, expires_at = json.loads(zlib.decompress(written))
    return SealedLogin(credential, datetime.fromtimestamp(expires_at, UTC))


def _cipher(keys: Secrets) -> Cipher:
    return Cipher([urlsafe_b64encode(key).decode() for key in keys.derived("logins")])
