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


def loose_parts(scope: Any) -> list[str]:
    """Return the parts of a request's path below the mount, also of one that is not valid."""
    parts = _below(_raw_path(scope), scope.get("root_path", ""), errors="replace")
    return [_decoded(part, "replace") for part in parts]


def hide_parts(scope: Any, *, keep: int) -> None:
    """Replace what comes behind the first parts of the path, which servers write to their log.

    The parts that were read stay. A server that logs another dict than that of the request is out
    of reach.
    """
    read_parts(scope)
    kept = [*loose_parts(scope)[:keep], "-"]
    hidden = scope.get("root_path", "") + "".join(f"/{part}" for part in kept)
    scope["path"] = hidden
    scope["raw_path"] = quote(hidden).encode()


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


def _below(raw: bytes, root: str, errors: str = "surrogatepass") -> list[bytes]:
    """Return the parts behind the mount's own path, which is known in its decoded form only."""
    parts = raw.split(b"/")
    if root:
        # No more parts of the path than the root has can be the root.
        for count in range(1, min(len(parts), root.count("/") + 1) + 1):
            # A server may give a root that is not part of the path.
            if _decoded(b"/".join(parts[:count]), errors) == root:
                return parts[count:]
    return parts[1:]


def _decoded(part: bytes, errors: str = "surrogatepass") -> str:
    return unquote_to_bytes(part).decode("utf-8", errors)
