"""A call that fails before its request is sent has not happened; later it may have."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import errors
from redis_state.http_client import HttpTaskClient
from redis_state.testing import eventually
from tests.support.servers.faults import certificate, tls_server_context
from tests.support.servers.ports import free_port
from tests.support.timing import LONG_S

# All of it is used where a connection or an answer never comes.
_TIME_S = 1.5
_HEAD_ENDS = b"\r\n\r\n"
Behave: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Server:
    """A port, how many have connected, and what each sent before it was left."""

    port: int = 0
    accepted: int = 0
    heard: list[bytes] = field(default_factory=list[bytes])


@asynccontextmanager
async def behaving(
    behave: Callable[[Server], Behave], *, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Server]:
    """Serve connections in one way until the test is over."""
    server, doing = Server(free_port()), set[asyncio.Task[Any]]()
    act = behave(server)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        doing.add(task)
        server.accepted += 1
        try:
            await act(reader, writer)
        finally:
            writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", server.port, ssl=tls)
    try:
        yield server
    finally:
        listening.close()
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


def says_nothing(server: Server) -> Behave:
    """Read for ever, and answer nothing."""

    async def act(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            server.heard.append(data)

    return act


def cut_after(wanted: bytes) -> Callable[[Server], Behave]:
    """Read up to some bytes, and cut the connection."""

    def behave(server: Server) -> Behave:
        async def act(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            server.heard.append(await reader.readuntil(wanted))

        return act

    return behave


def tunnel(answer: bytes) -> Callable[[Server], Behave]:
    """Answer what opens a tunnel, and nothing of what comes then."""

    def behave(server: Server) -> Behave:
        async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server.heard.append(await reader.readuntil(_HEAD_ENDS))
            writer.write(answer)
            while await reader.read(1 << 16):
                pass

        return act

    return behave


async def fails(http: HttpTaskClient) -> errors.BackendUnavailable:
    """Make a call that may not be repeated once it is sent; return its error."""
    with pytest.raises(errors.BackendUnavailable) as caught:
        await http.bulk("cancel", status="RUNNING")
    return caught.value


def assert_not_sent(error: errors.BackendUnavailable) -> None:
    """The call did not happen, and its error says so."""
    assert type(error) is errors.BackendUnavailable, error


async def test_a_port_that_is_closed_has_been_sent_nothing() -> None:
    async with HttpTaskClient(f"http://127.0.0.1:{free_port()}", timeout_s=_TIME_S) as http:
        assert_not_sent(await fails(http))


async def test_a_listener_that_never_answers_tls_has_been_sent_nothing() -> None:
    async with behaving(says_nothing) as server:
        address = f"https://127.0.0.1:{server.port}"
        trusting = ssl.create_default_context()
        async with HttpTaskClient(address, timeout_s=_TIME_S, tls=trusting) as http:
            error = await fails(http)
    assert server.heard[0][:1] == b"\x16", "it has the begin of a handshake"
    assert server.accepted > 1, "there was time for another connection"
    assert_not_sent(error)


async def test_a_handshake_that_is_cut_has_sent_nothing_and_the_call_is_repeated() -> None:
    async with behaving(cut_after(b"\x16")) as server:
        address = f"https://127.0.0.1:{server.port}"
        async with HttpTaskClient(
            address, timeout_s=_TIME_S, tls=ssl.create_default_context()
        ) as http:
            error = await fails(http)
    assert_not_sent(error)
    assert server.accepted > 1


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize(
    "wanted", [b"POST ", _HEAD_ENDS, b'"RUNNING"'], ids=["first bytes", "headers", "body"]
)
async def test_a_request_of_which_something_arrived_may_have_happened(
    wanted: bytes, tmp_path: Path, *, over_tls: bool
) -> None:
    trusting = served = None
    if over_tls:
        cert, key = certificate(tmp_path, "IP:127.0.0.1")
        trusting, served = ssl.create_default_context(cafile=cert), tls_server_context(cert, key)
    async with behaving(cut_after(wanted), tls=served) as server:
        address = f"{'https' if over_tls else 'http'}://127.0.0.1:{server.port}"
        async with HttpTaskClient(address, timeout_s=30, tls=trusting) as http:
            error = await fails(http)
    assert isinstance(error, errors.OutcomeUnknown)
    assert len(server.heard) == server.accepted == 1, "it was not sent again"


async def test_an_answer_that_does_not_come_in_time_leaves_the_outcome_unknown() -> None:
    async with (
        behaving(says_nothing) as server,
        HttpTaskClient(f"http://127.0.0.1:{server.port}", timeout_s=_TIME_S) as http,
    ):
        error = await fails(http)
    assert b'"RUNNING"' in b"".join(server.heard)
    assert isinstance(error, errors.OutcomeUnknown)
    assert "no answer in time" in str(error)


async def test_a_call_that_got_no_connection_of_a_full_pool_has_not_happened() -> None:
    one = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
    async with behaving(says_nothing) as server:
        address = f"http://127.0.0.1:{server.port}"
        async with (
            HttpTaskClient(address, timeout_s=LONG_S, transport=one) as patient,
            HttpTaskClient(address, timeout_s=0.3, transport=one) as hasty,
        ):
            holding = asyncio.create_task(fails(patient))
            await eventually(lambda: b'"RUNNING"' in b"".join(server.heard), "one has it")
            assert_not_sent(await fails(hasty))
            holding.cancel()
            await asyncio.wait({holding})
    assert server.accepted == 1


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"],
    ids=["silent", "refusing", "silent behind it"],
)
async def test_a_tunnel_that_does_not_come_about_has_sent_nothing(answer: bytes) -> None:
    async with behaving(tunnel(answer)) as server:
        through = httpx.AsyncHTTPTransport(proxy=f"http://127.0.0.1:{server.port}")
        async with HttpTaskClient(
            "https://gateway.invalid", timeout_s=_TIME_S, transport=through
        ) as http:
            error = await fails(http)
    assert server.heard[0].startswith(b"CONNECT gateway.invalid:443")
    assert_not_sent(error)


async def test_a_token_that_does_not_come_has_sent_nothing() -> None:
    asked = 0

    async def never() -> str:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return ""

    async with (
        behaving(says_nothing) as server,
        HttpTaskClient(f"http://127.0.0.1:{server.port}", never, timeout_s=0.2) as http,
    ):
        assert_not_sent(await fails(http))
    assert (asked, server.accepted) == (1, 0)


async def test_a_transport_that_tells_no_stages_may_have_sent_each_request() -> None:
    class Broken(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise httpx.ReadError("it broke", request=request)

    async with HttpTaskClient("http://gateway", timeout_s=30, transport=Broken()) as http:
        assert isinstance(await fails(http), errors.OutcomeUnknown)


async def test_an_answer_that_breaks_the_rules_of_http_2_leaves_the_outcome_unknown() -> None:
    pytest.importorskip("h2", reason="needs the package h2")

    def behave(server: Server) -> Behave:
        async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server.heard.append(await reader.readuntil(b'"RUNNING"'))
            settings, data_of_no_stream = b"\0\0\0\4\0\0\0\0\0", b"\0\0\0\0\0\0\0\0\0"
            writer.write(settings + data_of_no_stream)
            while await reader.read(1 << 16):
                pass

        return act

    async with behaving(behave) as server:
        speaks = httpx.AsyncHTTPTransport(http1=False, http2=True)
        address = f"http://127.0.0.1:{server.port}"
        async with HttpTaskClient(address, timeout_s=_TIME_S, transport=speaks) as http:
            error = await fails(http)
    assert isinstance(error, errors.OutcomeUnknown)
    assert server.accepted == 1
