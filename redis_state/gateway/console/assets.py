"""Files that pages load: our style and script, and htmx as it was published.

They are addressed by their digest, so a browser keeps them until they change.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.responses import Response

# Of the npm package htmx.org 4.0.1.
PINNED: Final = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
}
_TYPES = {
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
    "console.js": "text/javascript",
    "console.css": "text/css",
    "icon.svg": "image/svg+xml",
}
NAMES: Final = tuple(_TYPES)


@cache
def read_asset(name: str) -> bytes:
    """Read a file."""
    return files("redis_state.gateway.console").joinpath("static", name).read_bytes()


@cache
def digest(name: str) -> str:
    """Return the SHA-256 sum of a file."""
    return hashlib.sha256(read_asset(name)).hexdigest()


def asset_response(name: str) -> Response:
    """Return a file as a response."""
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "etag": f'"{digest(name)[:32]}"',
        "x-content-type-options": "nosniff",
    }
    return Response(read_asset(name), headers=headers, media_type=_TYPES[name])
