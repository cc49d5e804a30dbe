"""Claim checks: large payloads stand in a store of objects, and Redis has what names them.

The object is written before what names it, and its name holds a random id: a crash in between
leaves an object that nothing names, and never a name without its object. What names an object has
its digest, so a damaged one is not taken for the payload.

Nothing deletes an object when its task goes. An object's name begins with the namespace and the
day on which it was written: a lifecycle rule of a bucket removes what is older than any task may
become, and so does `FolderClaims.prune`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

from redis_state.errors import PayloadLost, PayloadStoreUnavailable
from redis_state.timeouts import timeout

T = TypeVar("T")

_DIGEST_CHARACTERS: Final = 64
# The largest payload takes a slow link less.
_ANSWER_S: Final = 120.0


class ClaimStore(Protocol):
    """Where large payloads stand: objects under keys, a bucket for example.

    A key is text of letters, digits and ``-_./%``. What is put is there once the call returns.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Write an object, whole or not at all."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Return an object, or None if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object, if there is one."""
        ...


class Elsewhere:
    """The payloads of one namespace in a store of claims."""

    def __init__(self, claims: ClaimStore, namespace: str) -> None:
        self._claims = claims
        # A name of dots is no folder's.
        self._place = quote(namespace, safe="").replace(".", "%2E")

    async def put(self, data: bytes) -> bytes:
        """Write an object; return what names it. Errors: PayloadStoreUnavailable."""
        today = datetime.now(UTC).date().isoformat()
        key = f"{self._place}/{today}/{secrets.token_hex(16)}"
        await self._ask("write", self._claims.put, key, data)
        return f"{hashlib.sha256(data).hexdigest()}:{key}".encode()

    async def get(self, name: bytes, *, of: str, field: str) -> bytes:
        """Return the object of a name. Errors: PayloadLost; PayloadStoreUnavailable."""
        text = name.decode("ascii", "replace")
        digest, key = text[:_DIGEST_CHARACTERS], text[_DIGEST_CHARACTERS + 1 :]
        data = await self._ask("read", self._claims.get, key)
        if data is None:
            raise PayloadLost(of, field, key, "is missing")
        if hashlib.sha256(data).hexdigest() != digest:
            raise PayloadLost(of, field, key, "is not what was written")
        return data

    async def delete(self, name: bytes) -> bool:
        """Delete the object of a name; return False for one of another namespace.

        Errors: PayloadStoreUnavailable.
        """
        key = name.decode("ascii", "replace")[_DIGEST_CHARACTERS + 1 :]
        if not key.startswith(f"{self._place}/"):
            return False
        await self._ask("delete", self._claims.delete, key)
        return True

    async def _ask(self, to: str, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Ask the store. One that does not answer is away. Errors: PayloadStoreUnavailable."""
        try:
            async with timeout(_ANSWER_S):
                return await call(*arguments)
        except Exception as error:
            raise PayloadStoreUnavailable(to, type(error).__name__) from error
