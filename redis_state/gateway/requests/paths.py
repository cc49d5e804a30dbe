"""Paths as they were sent: each part is percent-decoded once, so an id may hold any character.

ASGI's own ``path`` is decoded before it is divided: a slash in an id would be one of the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote_to_bytes

_PARTS = "redis_state.parts"
_LONGEST = 8_192


def read_parts(scope: Any) -> Sequence[str] | None:
    """Return the parts of a request's path below the mount; None for no valid one."""
    if _PARTS not in scope:
        scope[_PARTS] = _read(scope)
    found: Sequence[str] | None = scope[_PARTS]
    return found


def _read(scope: Any) -> list[str] | None:
    raw = _raw_path(scope)
    if len(raw) > _LONGEST:
        return None
    try:
        return [_decoded(part) for part in _below(raw, scope.get("root_path", ""))]
    except UnicodeDecodeError:
        return None


def _raw_path(scope: Any) -> bytes:
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        raw = quote(scope["path"], errors="surrogatepass").encode()
    return raw.partition(b"?")[0]


def _below(raw: bytes, root: str) -> list[bytes]:
    """Return the parts behind the mount's own path, which is known in its decoded form only."""
    parts = raw.split(b"/")
    if root:
        # No more parts of the path than the root has can be the root.
        for count in range(1, min(len(parts), root.count("/") + 1) + 1):
            # A server may give a root that is not part of the path.
            if _decoded(b"/".join(parts[:count])) == root:
                return parts[count:]
    return parts[1:]


def _decoded(part: bytes) -> str:
    return unquote_to_bytes(part).decode("utf-8", "surrogatepass")
