"""How far a request got: whether anything of it may have reached its server."""

from __future__ import annotations

from typing import Any

import httpx

# With these nothing of a request was sent, whatever the transport says of its stages.
_NOT_SENT = (
    *(httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout),
    *(httpx.ProxyError, httpx.UnsupportedProtocol),
)
_CONNECTING = ("connection.", "proxy.", "socks.")
# HTTP/1.1 and HTTP/2 have this stage in common. Headers come before all else of a request.
_FIRST_BYTES, _SENT_HEADERS = ".send_request_headers.started", ".send_request_headers.complete"
_TUNNEL = b"CONNECT"


class Sending:
    """Follow the stages of one request after the other, as the `trace` extension of httpx has them.

    A transport without stages, such as one of an application in this process, may have sent each
    request that it was given.
    """

    def __init__(self, *, reports: bool) -> None:
        self._reports = reports
        self._maybe = False
        self._sent_headers = False

    @property
    def maybe(self) -> bool:
        """Whether the server may have something of the request."""
        return self._maybe

    def begin(self) -> dict[str, Any]:
        """Begin a request; return the extensions that it needs."""
        self._maybe = not self._reports
        self._sent_headers = False
        seen = False

        async def trace(stage: str, facts: dict[str, Any]) -> None:
            nonlocal seen
            if stage.endswith(_FIRST_BYTES):
                # What opens a tunnel goes to the proxy, and says nothing of the request.
                self._maybe = self._maybe or _method(facts) != _TUNNEL
            elif stage.endswith(_SENT_HEADERS):
                self._sent_headers = self._maybe
            elif not seen and stage.startswith(_CONNECTING):
                self._maybe = False
            seen = True

        return {"trace": trace}

    def refused(self) -> None:
        """Note that the server has refused the request before it did anything."""
        self._maybe = False

    def failed(self, error: Exception) -> bool:
        """Return whether a request that failed may have reached the server."""
        if isinstance(error, httpx.LocalProtocolError):
            # Headers that cannot be written. Of HTTP/2 it is also an answer that breaks a rule.
            return self._sent_headers
        return self._maybe and not isinstance(error, _NOT_SENT)


def _method(facts: dict[str, Any]) -> bytes:
    return bytes(getattr(facts.get("request"), "method", b""))
