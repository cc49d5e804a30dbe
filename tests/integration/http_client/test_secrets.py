"""What a client may not give away, and whom it may not trust."""

from __future__ import annotations

import asyncio
import logging
import ssl
import traceback
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import errors
from redis_state.http_client import HttpTaskClient
from tests.support.http.gateway import tokens
from tests.support.http.http_gateway import EVERYTHING, OverHttp
from tests.support.servers.faults import Proxy, certificate, tls_server_context

SECRET = "a-secret-token"


async def test_a_token_is_in_no_error_no_text_and_no_log(
    over: OverHttp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[BaseException] = []
    async with HttpTaskClient(over.base_url, SECRET) as http:
        assert SECRET not in repr(http)
        assert SECRET not in repr(vars(http))
        with pytest.raises(errors.AuthenticationFailed) as refused:
            await http.submit("echo", {"my": "payload"}, session_id="s")
        seen.append(refused.value)
    over.proxy.cut()
    over.proxy.refuse()
    async with HttpTaskClient(over.base_url, SECRET, timeout_s=2) as http:
        with pytest.raises(errors.BackendUnavailable) as gone:
            await http.submit("echo", {"my": "payload"}, session_id="s")
        seen.append(gone.value)
    for error in seen:
        text = "".join(traceback.format_exception(error))
        assert SECRET not in text
        assert "payload" not in str(error)
        # httpx's own errors have the request as an attribute: none is left behind ours.
        assert (error.__cause__, error.__context__) == (None, None)
    assert SECRET not in caplog.text
    assert "payload" not in caplog.text


@pytest.mark.parametrize("token", ["sécret", "secret\n", "sec ret", b"secret", ""])
async def test_a_token_that_no_header_can_have_is_refused_without_being_told(
    over: OverHttp, token: Any
) -> None:
    for given in (token, lambda: token):
        async with HttpTaskClient(over.base_url, given) as http:
            for call in (http.get("s", "t"), anext(http.watch("s", "t"))):
                with pytest.raises(errors.InvalidField, match="token") as refused:
                    await call
                assert "cret" not in str(refused.value)
                assert (refused.value.__cause__, refused.value.__context__) == (None, None)


async def test_a_function_that_makes_tokens_is_asked_once_more_after_a_401(over: OverHttp) -> None:
    made = 0

    def make() -> str:
        nonlocal made
        made += 1
        return f"{SECRET}-{made}"

    async with HttpTaskClient(over.base_url, make, timeout_s=5) as http:
        for call in (http.get("s", "t"), anext(http.watch("s", "t"))):
            made = 0
            with pytest.raises(errors.AuthenticationFailed):
                async with asyncio.timeout(5):
                    await call
            assert made == 2


@pytest.mark.parametrize(
    "base_url",
    [
        *("http://user:a-secret-token@host", "ftp://host", "host", "http://", "http://h/?a=b"),
        *("http://[::1", "http://h/#f"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_told(base_url: str) -> None:
    with pytest.raises(errors.ConfigError, match="base_url") as refused:
        HttpTaskClient(base_url)
    assert SECRET not in str(refused.value)
    with pytest.raises(errors.InvalidField, match="timeout_s"):
        HttpTaskClient("http://host", timeout_s=0)
    with pytest.raises(errors.InvalidField, match="idle_s"):
        HttpTaskClient("http://host", idle_s=0)


async def test_a_gateway_behind_tls_is_trusted_by_its_own_ca_only(
    over: OverHttp, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "DNS:localhost")
    token = tokens.mint("root", EVERYTHING)
    target = f"redis://127.0.0.1:{over.proxy.port}"
    async with Proxy(target, tls=tls_server_context(cert, key)) as proxy:
        base_url = f"https://localhost:{proxy.port}"
        trusting = ssl.create_default_context(cafile=str(cert))
        async with HttpTaskClient(base_url, token, tls=trusting) as http:
            await http.submit("echo", 5, session_id="s", task_id="t")
            assert await http.result("s", "t") == 5
        # Nothing is tried again for half a minute, and nothing is sent.
        async with HttpTaskClient(base_url, token) as http:
            for call in (http.get("s", "t"), anext(http.watch("s", "t"))):
                with pytest.raises(errors.BackendUnavailable, match="certificate") as refused:
                    await call
                assert refused.value.final


async def test_another_application_at_the_address_is_told_as_that(over: OverHttp) -> None:
    token = tokens.mint("root", EVERYTHING)

    statuses = [200, 302, 404, 404, 200]

    async def page(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": statuses.pop(0), "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    async with HttpTaskClient("http://x", token, transport=httpx.ASGITransport(page)) as http:
        for _ in range(3):
            with pytest.raises(errors.CommandRefused, match="gateway"):
                await http.get("s", "t")
        with pytest.raises(errors.CommandRefused, match="no gateway has answered: status 404"):
            await anext(http.watch("s", "t"))
        with pytest.raises(errors.CommandRefused, match="no stream"):
            await anext(http.watch("s", "t"))
    with pytest.raises(errors.BackendUnavailable, match="closed"):
        await http.get("s", "t")
