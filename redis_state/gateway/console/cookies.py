"""The cookie of a login: a credential that only processes with the console's secret can read.

It is sealed with what every installation has. A keystream of HMAC-SHA256, counted on from a random
number, hides it. A second HMAC is over all of it, and is checked before anything is read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime

from redis_state.gateway.auth.jwt import Secrets

_RANDOM, _BLOCK = 16, hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class SealedLogin:
    """What a cookie has."""

    credential: str = field(repr=False)
    expires_at: datetime


def seal_login(keys: Secrets, login: SealedLogin) -> str:
    """Write a login as a cookie's value."""
    written = json.dumps([login.credential, login.expires_at.timestamp()]).encode()
    hidden, checked = _keys(keys)[0]
    start = secrets.token_bytes(_RANDOM)
    sealed = start + _masked(hidden, start, zlib.compress(written))
    tag = hmac.digest(checked, sealed, hashlib.sha256)
    return urlsafe_b64encode(sealed + tag).rstrip(b"=").decode()


def open_login(keys: Secrets, cookie: str) -> SealedLogin | None:
    """Read a cookie's value; None for one that was not made with one of the secrets."""
    try:
        raw = urlsafe_b64decode(cookie.encode("ascii") + b"=" * (-len(cookie) % 4))
    except ValueError:
        return None
    sealed, tag = raw[:-_BLOCK], raw[-_BLOCK:]
    for hidden, checked in _keys(keys):
        if hmac.compare_digest(hmac.digest(checked, sealed, hashlib.sha256), tag):
            read = _masked(hidden, sealed[:_RANDOM], sealed[_RANDOM:])
            credential, expires_at = json.loads(zlib.decompress(read))
            return SealedLogin(credential, datetime.fromtimestamp(expires_at, UTC))
    return None


def _keys(keys: Secrets) -> list[tuple[bytes, bytes]]:
    hidden, checked = keys.derived("logins"), keys.derived("logins, checked")
    return list(zip(hidden, checked, strict=True))


def _masked(key: bytes, start: bytes, data: bytes) -> bytes:
    """Hide data, or show it again."""
    stream = b"".join(
        hmac.digest(key, start + at.to_bytes(4, "big"), hashlib.sha256)
        for at in range(-(-len(data) // _BLOCK))
    )
    return bytes(one ^ other for one, other in zip(data, stream, strict=False))
