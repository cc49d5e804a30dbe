"""What becomes of a model's key when its session is stored. Encryption needs the extra ``crypto``.

The key of a model stands in two places of a session: ``llmConfig.apiKey`` of the definition and of
the state; ``queryParams`` beside it may hold others, known by their names. In memory a key is what
it is; this is about what the server gets to see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast

from pydantic import SecretStr

from redis_state.agents.state.inference import REDACTED, is_secret
from redis_state.errors import ConfigError
from redis_state.serialization.encryption import Cipher

Protect: TypeAlias = Literal["keep", "redact", "encrypt"]

_SEALED = "fernet:"


def is_sealed(key: str) -> bool:
    """Return whether a key is encrypted, as `protect="keep"` reads one of `protect="encrypt"`."""
    return key.startswith(_SEALED)


class Protection(ABC):
    """Seals the key in an object on its way to the server, and opens it on its way back."""

    def seal(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return an object with its key sealed. One without a key is returned as it is."""
        return _with_key(data, self.sealed)

    def open(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return an object as it was before it was sealed. Errors: ConfigError."""
        return _with_key(data, self.opened)

    @abstractmethod
    def sealed(self, key: str) -> str:
        """Return what is stored in a key's place."""

    def opened(self, stored: str) -> str:
        """Return the key for what is stored in its place; what cannot be opened stays sealed."""
        return stored


class Keep(Protection):
    """Stores a key as it is."""

    def sealed(self, key: str) -> str:
        """Return the key."""
        return key


class Redact(Protection):
    """Stores no key."""

    def sealed(self, key: str) -> str:
        """Return that there was one."""
        del key
        return REDACTED


class Encrypt(Protection):
    """Stores a key encrypted, with the time, and refuses one that was changed."""

    def __init__(self, secret: SecretStr) -> None:
        try:
            self._cipher = Cipher([secret.get_secret_value()])
        except ImportError:
            problem = "protect='encrypt' needs the extra 'crypto': pip install redis_state[crypto]"
            raise ConfigError(problem) from None
        except ValueError:
            raise ConfigError(
                "encryption_key: 32 bytes in URL-safe base64 are needed, as Fernet.generate_key() "
                "makes them"
            ) from None

    def sealed(self, key: str) -> str:
        """Encrypt a key. One that is encrypted already, or was redacted, stays."""
        if key.startswith(_SEALED) or key == REDACTED:
            return key
        return _SEALED + self._cipher.encrypt(key.encode("utf-8", "surrogatepass")).decode()

    def opened(self, stored: str) -> str:
        """Decrypt a key; one that was stored without encryption stays. Errors: ConfigError."""
        if not stored.startswith(_SEALED):
            return stored
        opened = self._cipher.decrypt(stored.removeprefix(_SEALED).encode())
        if opened is None:
            raise ConfigError("encryption_key: is not the one of the stored apiKey")
        return opened.decode("utf-8", "surrogatepass")


def protection_for(protect: str, encryption_key: SecretStr | None) -> Protection:
    """Make the protection of a name. Errors: ConfigError."""
    if protect == "encrypt":
        if encryption_key is None:
            raise ConfigError("protect='encrypt' needs an encryption_key")
        return Encrypt(encryption_key)
    if protect not in ("keep", "redact"):
        raise ConfigError(f"protect={protect!r}: use one of keep, redact, encrypt")
    return Keep() if protect == "keep" else Redact()


def _with_key(data: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    config = data.get("llmConfig")
    if not isinstance(config, Mapping):
        return data
    values = cast("Mapping[str, Any]", config)
    changed = _changed(values, lambda name: name == "apiKey", change)
    params = values.get("queryParams")
    if isinstance(params, Mapping):
        changed |= {"queryParams": _changed(cast("Mapping[str, Any]", params), is_secret, change)}
    return data if changed == values else {**data, "llmConfig": changed}


def _changed(
    values: Mapping[str, Any], is_key: Callable[[str], bool], change: Callable[[str], str]
) -> dict[str, Any]:
    return {
        name: change(value) if is_key(name) and isinstance(value, str) and value else value
        for name, value in values.items()
    }
