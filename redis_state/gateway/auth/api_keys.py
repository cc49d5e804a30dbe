"""API keys. The server has their digests only.

A key is ``rsk_<id>_<secret>``: the id finds the digest, which is compared in constant time. The
secret has 256 random bits, so that a fast digest is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, cast

from starlette.requests import HTTPConnection

from redis_state.errors import ConfigError, InvalidField
from redis_state.gateway.auth.files import WatchedFile
from redis_state.gateway.auth.principal import Principal, Unauthenticated, bearer, read_scopes

_PREFIX = "rsk_"
_ID_BYTES = 6
_NEVER = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
_FIELDS = {"id", "sha256", "subject", "scopes", "expires_at"}


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as the server has it: its digest, and whose it is."""

    key_id: str
    sha256: str = field(repr=False)
    principal: Principal

    def document(self) -> dict[str, Any]:
        """Write it as an entry of a file of keys."""
        expires_at = self.principal.expires_at
        return {
            "id": self.key_id,
            "sha256": self.sha256,
            "subject": self.principal.subject,
            "scopes": sorted(map(str, self.principal.scopes)),
        } | ({} if expires_at is None else {"expires_at": expires_at.isoformat()})


class ApiKeys:
    """Knows callers by ``Authorization: Bearer rsk_…``."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        named = {each.key_id: each for each in keys}
        self._keys: Callable[[], Mapping[str, ApiKey]] = lambda: named

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a file of keys: a JSON list of what `make_api_key` gave.

        A key that is added to the file, or removed, counts within about a second. If the file
        cannot be used later, the keys of before hold. Errors: ConfigError names what is wrong,
        without any digest.
        """
        made = cls(())
        made._keys = WatchedFile(Path(path), _read_file)
        return made

    async def authenticate(self, connection: HTTPConnection) -> Principal | None:
        """Return the caller. Errors: Unauthenticated for a key that is unknown or has expired."""
        presented = bearer(connection)
        if presented is None or not presented.startswith(_PREFIX):
            return None
        # Neither part may decide how long the answer takes: an unknown id is compared too.
        found = self._keys().get(presented.removeprefix(_PREFIX).partition("_")[0])
        expected = _NEVER if found is None else found.sha256
        if not hmac.compare_digest(_digest(presented), expected) or found is None:
            raise Unauthenticated("the key is not known")
        if found.principal.expired():
            raise Unauthenticated("the key has expired")
        return found.principal


def make_api_key(
    subject: str, scopes: Iterable[str], *, expires_at: datetime | None = None
) -> tuple[str, ApiKey]:
    """Make a key; return it, and what the server keeps of it. It cannot be read back.

    Errors: InvalidField.
    """
    key_id = secrets.token_hex(_ID_BYTES)
    key = f"{_PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    principal = Principal(subject, read_scopes(list(scopes)), expires_at)
    return key, ApiKey(key_id, _digest(key), principal)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _read_file(path: Path) -> dict[str, ApiKey]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the file of keys cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError("the file of keys is no JSON") from None
    if not isinstance(listed, list):
        raise ConfigError("the file of keys is no list")
    keys = [_read(at, each) for at, each in enumerate(cast("Any", listed))]
    named = {each.key_id: each for each in keys}
    if len(named) < len(keys):
        raise ConfigError("the file of keys has two keys of one id")
    return named


def _read(at: int, entry: Any) -> ApiKey:
    try:
        known = _known(entry)
        expires = known.get("expires_at")
        moment = None if expires is None else datetime.fromisoformat(expires)
        if moment is not None and moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        key_id, digest = _text(known["id"]), _sha256(known["sha256"])
        principal = Principal(known["subject"], read_scopes(known["scopes"]), moment)
    except InvalidField as error:
        raise ConfigError(f"key {at} of the file of keys: {error}") from None
    except (ValueError, TypeError, KeyError):
        names = ", ".join(sorted(_FIELDS))
        raise ConfigError(f"key {at} of the file of keys: it needs {names}") from None
    return ApiKey(key_id, digest, principal)


def _known(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or not entry.keys() <= _FIELDS:
        raise TypeError
    return cast("dict[str, Any]", entry)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


def _sha256(given: Any) -> str:
    if len(bytes.fromhex(given)) != hashlib.sha256().digest_size:
        raise ValueError
    return str(given).lower()
