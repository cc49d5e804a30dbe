"""Whom a client trusts, also one whose gateway is reached without TLS."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import errors
from redis_state.http_client import HttpTaskClient
from redis_state.http_client.requests.caller import tls_for
from tests.support.servers.faults import certificate, tls_server_context
from tests.support.servers.ports import free_port


def test_the_authorities_are_read_for_https_alone() -> None:
    assert tls_for("https://host") is True
    plain = tls_for("http://host")
    assert isinstance(plain, ssl.SSLContext)
    assert plain.verify_mode is ssl.CERT_REQUIRED
    assert plain.check_hostname
    assert plain.cert_store_stats()["x509_ca"] == 0


async def test_a_redirect_to_https_is_not_followed_and_would_be_verified(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    plain_port, tls_port = free_port(), free_port()
    redirects, heard = 0, b""

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal redirects
        await reader.readuntil(b"\r\n\r\n")
        redirects += 1
        there = f"location: https://127.0.0.1:{tls_port}/\r\n"
        writer.write(
            f"HTTP/1.1 307 There\r\n{there}content-length: 0\r\nconnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard += await reader.read(1 << 16)
        writer.close()

    secret = "the-token-of-a-caller"
    plain = await asyncio.start_server(redirect, "127.0.0.1", plain_port)
    over_tls = await asyncio.start_server(
        listen, "127.0.0.1", tls_port, ssl=tls_server_context(cert, key)
    )
    address = f"http://127.0.0.1:{plain_port}"
    async with plain, over_tls:
        async with HttpTaskClient(address, secret) as http:
            with pytest.raises(errors.CommandRefused):
                await http.get("s", "t")
        assert redirects == 1
        options: dict[str, Any] = {"follow_redirects": True, "trust_env": False}
        async with httpx.AsyncClient(verify=tls_for(address), **options) as follower:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await follower.get(address)
        assert redirects == 2
        assert not heard, "nothing was sent over TLS"
        # It can be heard: by who trusts that server.
        trusting = ssl.create_default_context(cafile=str(cert))
        async with httpx.AsyncClient(verify=trusting, **options) as follower:
            with pytest.raises(httpx.RemoteProtocolError):
                await follower.get(address)
        assert heard.startswith(b"GET / HTTP/1.1")
