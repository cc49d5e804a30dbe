"""Paths and queries as a server writes them to its log: without tokens, wherever those stand.

A link of a hook is the right to decide, also under a path that leads nowhere: a proxy that leaves a
slash, a prefix or another case sends it, and the link is valid elsewhere.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from redis_state.gateway.showing.cutting import WITH_MORE

MASK: Final = "-"
# More layers of percent-encoding than that are masked unread: to read all is work by the square.
_LAYERS: Final = 5
_SECRETS: Final = (
    # JSON in base64 begins so: each JWT does.
    re.compile(r"eyJ[A-Za-z0-9_=-]{8,}[.A-Za-z0-9_=-]*"),
    # An API key.
    re.compile(r"rsk_[A-Za-z0-9_-]{8,}"),
    WITH_MORE,
)
_HOOK: Final = re.compile(r"v1[^a-z0-9]+hooks?[^a-z0-9]", re.IGNORECASE)
# What may be a part of a link. An id of a few letters is none.
_OPAQUE: Final = re.compile(r"[A-Za-z0-9_-]{16}")
_NAME: Final = re.compile(
    r"token|secret|passw|passphrase|\bpass\b|pwd|key|signature|\bsig\b|code|auth|credential|jwt"
    r"|bearer|otp\b|cookie|assertion|ticket",
    re.IGNORECASE,
)
_PAIRS: Final = re.compile(rb"[^&;]+")
# A parameter of an address within an address, such as that of a page to return to.
_INNER: Final = re.compile(r"([?&;#])([^=&;?#]{1,128})=[^&;#]+")


def masked_scope(scope: Any) -> Any:
    """Mask tokens in a request's scope, which the server logs; return the scope to be served.

    That one has what was sent. It is the same if there is no token. A server that logs another dict
    than that of the request is out of reach.
    """
    raw_path: bytes | None = scope.get("raw_path")
    sent = quote(scope["path"], errors="surrogatepass").encode() if raw_path is None else raw_path
    path, query = mask_path(sent), mask_query(scope.get("query_string", b""))
    if path is None and query is None:
        return scope
    served = dict(scope)
    if path is not None:
        scope["path"], scope["raw_path"] = path, quote(path).encode()
    if query is not None:
        scope["query_string"] = quote(query, safe="=&;?/").encode()
    return served


def mask_path(raw: bytes) -> str | None:
    """Return a path as text without tokens; None if it has none."""
    text = _decoded(raw)
    if text is None:
        return f"/{MASK}"
    masked = _masked(text)
    return None if masked == text else masked


def mask_query(raw: bytes) -> str | None:
    """Return a query as text without tokens; None if it has none."""
    if not raw:
        return None
    named = _PAIRS.sub(_without_secret, raw)
    text = _decoded(named)
    if text is None:
        return MASK
    masked = _masked(text)
    return None if named == raw and masked == text else masked


def _without_secret(pair: re.Match[bytes]) -> bytes:
    name, given, _ = pair[0].partition(b"=")
    if not given:
        return pair[0]
    read = _decoded(name)
    return name + b"=" + MASK.encode() if read is None or _NAME.search(read) else pair[0]


def _without_inner(pair: re.Match[str]) -> str:
    separator, name = pair.groups()
    return f"{separator}{name}={MASK}" if _NAME.search(name) else pair[0]


def _masked(text: str) -> str:
    text = _INNER.sub(_without_inner, text)
    for secret in _SECRETS:
        text = secret.sub(MASK, text)
    hook = _HOOK.search(text)
    if hook is not None and _OPAQUE.search(text, hook.end()):
        # Also a link that has lost its beginning.
        return text[: hook.end()] + MASK
    return text


def _decoded(raw: bytes) -> str | None:
    """Return what is left when nothing is percent-encoded; None if that is too far below."""
    for _ in range(_LAYERS):
        read = unquote_to_bytes(raw)
        if read == raw:
            return raw.decode("utf-8", "replace")
        raw = read
    return None
