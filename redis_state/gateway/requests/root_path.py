"""A gateway that a proxy serves below a path of its own."""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from redis_state.errors import ConfigError
from redis_state.gateway.app import OPERATIONS

# A request below one of these would look like one whose root path the proxy has left.
_OWN = frozenset({"console", *(each.path.split("/")[1] for each in OPERATIONS)})


class AtRootPath:
    """Serve an application below a path, whether the proxy before it cuts the path off or not."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root = check_root_path(root_path)
        self._raw = quote(self._root, safe="/").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if self._root and scope["type"] in ("http", "websocket"):
            # In the server's own dict: its log has to show the path that `masked_scope` leaves.
            scope["root_path"] = self._root
            path: str = scope["path"]
            if path != self._root and not path.startswith(f"{self._root}/"):
                scope["path"] = self._root + path
                raw: bytes = scope.get("raw_path") or quote(path, safe="/").encode()
                scope["raw_path"] = self._raw + raw
        await self._app(scope, receive, send)


def check_root_path(root_path: str) -> str:
    """Return a path without the slash at its end. Errors: ConfigError."""
    root = unquote(root_path).rstrip("/")
    if root_path and not (
        root_path.startswith("/") and root.isprintable() and not {"?", "#"} & {*root}
    ):
        raise ConfigError("root path: write it as in a URL, such as /agents")
    if any(part in ("", ".", "..") for part in root.split("/")[1:]):
        raise ConfigError("root path: no part of it may be empty, or lead upwards")
    if (first := root.partition("/")[2].partition("/")[0]) in _OWN:
        raise ConfigError(
            f"root path: may not begin with /{first}, which is the gateway's own path"
        )
    return root
