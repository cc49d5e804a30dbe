"""A client within the loop that reads a stream while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Self

from redis_state.testing import eventually


class Reader:
    """An ASGI client that reads a stream while it is written, as httpx's transport cannot."""

    def __init__(
        self,
        app: Any,
        path: str,
        token: str,
        *,
        query: str = "",
        after: str = "",
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._app = app
        sent = [*headers]
        sent += [(b"authorization", f"Bearer {token}".encode()), (b"host", b"gateway.test")]
        sent += [(b"last-event-id", after.encode())] if after else []
        self._scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": sent,
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "http_version": "1.1",
        }
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.over = False
        self._gone = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        await eventually(lambda: self.status, "the answer begins")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        assert self.task is not None
        await self.task

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            self.body += message["body"]
            self.over = not message.get("more_body", False)

    def ids(self) -> list[str]:
        """Return the cursors of what came."""
        return [line[4:] for line in self.body.decode().splitlines() if line.startswith("id: ")]
