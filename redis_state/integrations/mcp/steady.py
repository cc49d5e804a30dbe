"""A transport under the SDK's client for servers that come and go.

One error of the network ends the SDK's client for Streamable HTTP, with all its calls (SDK 2.3). So
this one answers in place of the server: the call that met the error fails, and the client lives.
"""

from __future__ import annotations

from typing import cast

import httpx2
from mcp_types import CONNECTION_CLOSED

_AWAY = frozenset({502, 503, 504})


class SteadyTransport(httpx2.AsyncBaseTransport):
    """Give it to the HTTP client: ``httpx2.AsyncClient(transport=SteadyTransport())``.

    A request that no server has answered fails as an MCPError of the code of a closed connection.
    So does one that a proxy has answered in place of a server that is away.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport | None = None) -> None:
        self._inner = inner or httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        try:
            response = await self._inner.handle_async_request(request)
            if response.status_code in _AWAY:
                await response.aclose()
                return _nobody()
            kind = response.headers.get("content-type", "").lower()
            # The SDK reads it in one piece, and its client ends if that fails.
            return await _whole(response) if kind.startswith("application/json") else response
        except httpx2.TransportError:
            return _nobody()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


async def _whole(response: httpx2.Response) -> httpx2.Response:
    """Read the body of a response, still encoded. Errors: TransportError."""
    stream = cast("httpx2.AsyncByteStream", response.stream)
    try:
        body = b"".join([part async for part in stream])
    finally:
        await response.aclose()
    return httpx2.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx2.ByteStream(body),
        extensions=response.extensions,
    )


def _nobody() -> httpx2.Response:
    error = {"code": CONNECTION_CLOSED, "message": "No server has answered"}
    return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error})
