"""One transport in several event loops, at the end of a loop, over TLS, with its own server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from redis_state.embedded.server import EmbeddedServer, start_embedded
from redis_state.errors import BackendUnavailable, ConfigError
from redis_state.settings import Settings
from redis_state.testing import eventually
from redis_state.transport.transport import Transport
from tests.support.processes import children
from tests.support.servers.faults import (
    Proxy,
    certificate,
    own_binary,
    sender_to,
    tls_server_context,
)

ROOT = Path(__file__).parents[4]
SOON_S = 60.0


async def echo(transport: Transport, text: str) -> bytes:
    reply: bytes = await transport.sender.send("ECHO", text, repeatable=True)
    return reply


@pytest.fixture
async def transport(settings: Settings) -> AsyncIterator[Transport]:
    opened = Transport(settings)
    yield opened
    await opened.aclose()


def settings_of(url: str, **options: Any) -> Settings:
    return Settings(url=SecretStr(url), **options)


def test_making_a_transport_and_leaving_it_does_nothing() -> None:
    Transport(settings_of("redis://nowhere.invalid"))


def test_unusable_address_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="port"):
        Transport(settings_of("redis://h:x"))


async def test_drain_waits_for_what_this_loop_has_queued(transport: Transport) -> None:
    await transport.drain()
    call = transport.sender.send("PING", repeatable=True)
    await transport.drain(SOON_S)
    assert call.done()


@pytest.mark.role("any", why="it sends ECHO")
async def test_closed_transport_refuses_calls_in_its_loop(settings: Settings) -> None:
    for used in (True, False):
        transport = Transport(settings)
        if used:
            assert await echo(transport, "x") == b"x"
        await transport.aclose()
        await transport.aclose()
        with pytest.raises(BackendUnavailable, match="closed"):
            await echo(transport, "x")
        with pytest.raises(BackendUnavailable, match="closed"):
            transport.subscriber.subscribe("channel")


@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.role("any", why="it sends ECHO")
def test_one_transport_serves_loops_one_after_the_other(
    settings_for_loops: Settings, *, closing: bool
) -> None:
    transport = Transport(settings_for_loops)

    async def use(text: str) -> tuple[bytes, bytes | None]:
        replies = await asyncio.gather(*(echo(transport, text) for _ in range(3)))
        confirmed = await transport.subscriber.subscribe("channel").next()
        if closing:
            await transport.aclose()
        return replies[0], confirmed

    for text in ("first", "second", "third"):
        assert asyncio.run(use(text)) == (text.encode(), None)
    assert len(transport._links) == 1


@pytest.fixture
def settings_for_loops(settings: Settings) -> Settings:
    """Give settings without an event loop of the test's own around them."""
    return settings


@pytest.mark.role("any", why="it sends ECHO")
def test_one_transport_serves_loops_of_two_threads_at_once(settings_for_loops: Settings) -> None:
    transport = Transport(settings_for_loops)
    both = threading.Barrier(2, timeout=SOON_S)
    wrong: list[str] = []

    async def use(name: str) -> None:
        both.wait()
        for turn in range(200):
            texts = [f"{name} {turn} {number}" for number in range(5)]
            replies = await asyncio.gather(*(echo(transport, text) for text in texts))
            wrong.extend(
                text for text, reply in zip(texts, replies, strict=True) if text.encode() != reply
            )
        both.wait()
        if name == "first":
            await transport.aclose()
        both.wait()
        if name == "second":
            # Closed in the one loop, it goes on in the other.
            assert await echo(transport, "still") == b"still"
            await transport.aclose()

    ended: list[str] = []

    def run(name: str) -> None:
        asyncio.run(use(name))
        ended.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert sorted(ended) == ["first", "second"]
    assert wrong == []


def test_two_loops_share_one_embedded_server_until_the_last_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(own_binary()))
    transport = Transport(settings_of("embedded://"))
    both = threading.Barrier(2, timeout=SOON_S)
    pids: list[int] = []

    async def use(name: str) -> None:
        both.wait()
        info = await transport.sender.send("INFO", "server", repeatable=True)
        pids.append(int(info.split(b"process_id:")[1].split()[0]))
        both.wait()
        if name == "first":
            await transport.aclose()
        both.wait()
        if name == "second":
            os.kill(pids[0], 0)
            assert await echo(transport, "still") == b"still"
            await transport.aclose()

    threads = [
        threading.Thread(target=asyncio.run, args=(use(name),)) for name in ("first", "second")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert len(pids) == 2
    assert pids[0] == pids[1]
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def slow_binary(folder: Path, wait: str) -> Path:
    """Make a program that starts the server after it has waited."""
    program = folder / "slow-server"
    program.write_text(f'#!/bin/sh\ntouch {folder}/begun\n{wait}\nexec {own_binary()} "$@"\n')
    program.chmod(0o755)
    return program


async def test_loop_stays_free_while_the_embedded_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_stopped = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(slow_binary(tmp_path, until_stopped)))
    transport = Transport(settings_of("embedded://"))
    call = asyncio.ensure_future(echo(transport, "started"))
    turns = 0

    def in_another_loop() -> None:
        async def use() -> None:
            transport.subscriber.subscribe("channel")
            assert transport.sender.pending == 0

        asyncio.run(use())

    await eventually((tmp_path / "begun").exists, "the server is about to start")
    other = asyncio.create_task(asyncio.to_thread(in_another_loop))
    while not call.done():
        await asyncio.wait({call}, timeout=0.01)
        turns += 1
        assert transport.sender.pending <= 1
        if turns == 20:
            # A loop that was kept by the start would never come here, and the server never start.
            (tmp_path / "go").touch()
    assert await call == b"started"
    # The server is there: this connection just goes to it.
    assert await transport.subscriber.subscribe("channel").next() is None
    assert turns > 20
    await other
    await transport.aclose()


async def test_close_while_the_embedded_server_starts_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", str(slow_binary(tmp_path, "sleep 0.3")))
    transport = Transport(settings_of("embedded://"))
    started: list[EmbeddedServer] = []
    call = transport.sender.send("PING", repeatable=True)
    await eventually((tmp_path / "begun").exists, "the server is about to start")
    monkeypatch.setattr(EmbeddedServer, "stop", recording(started))
    await transport.aclose(drain_s=0)
    with pytest.raises(BackendUnavailable):
        await call
    (server,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def recording(seen: list[EmbeddedServer]) -> Any:
    stop = EmbeddedServer.stop

    def recorded(server: EmbeddedServer) -> None:
        seen.append(server)
        stop(server)

    return recorded


async def test_embedded_server_that_cannot_start_is_a_config_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_STATE_SERVER_BIN", "/nowhere/redis-server")
    transport = Transport(settings_of("embedded://"))
    with pytest.raises(ConfigError, match="REDIS_STATE_SERVER_BIN"):
        await echo(transport, "x")
    with pytest.raises(ConfigError, match="REDIS_STATE_SERVER_BIN"):
        await transport.subscriber.subscribe("channel").next()
    await transport.aclose()


@pytest.mark.parametrize("name", ["IP:127.0.0.1", "DNS:elsewhere"])
async def test_tls_checks_who_the_server_is(
    settings: Settings, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate(tmp_path, name)
    tls = tls_server_context(cert, key)
    async with Proxy(settings.url.get_secret_value(), tls=tls) as proxy:

        async def reach(query: str) -> str:
            url = f"rediss://127.0.0.1:{proxy.port}/0{query}"
            async with sender_to(url, call_timeout_s=2) as sender:
                try:
                    await sender.send("PING", repeatable=True)
                except BackendUnavailable as error:
                    return str(error)
            return "reached"

        assert "certificate verify failed" in await reach("")
        trusted = await reach(f"?ssl_ca_certs={cert}")
        if name == "IP:127.0.0.1":
            assert trusted == "reached"
        else:
            assert "certificate is not valid" in trusted or "IP address mismatch" in trusted
            lenient = f"?ssl_ca_certs={cert}&ssl_check_hostname=false"
            assert await reach(lenient) == "reached"
        assert await reach("?ssl_cert_reqs=none") == "reached"


ENDINGS = {
    "a loop that ends with open connections": """
async def main():
    await transport.sender.send("PING", repeatable=True)
    await transport.subscriber.subscribe("channel").next()
asyncio.run(main())
asyncio.run(main())
""",
    "a loop that ends with unawaited calls": """
async def main():
    for _ in range(250):
        transport.sender.send("PING", repeatable=True)
    transport.sender.send("NOSUCHCOMMAND", repeatable=True)
    await asyncio.sleep(random.random() / 100)
for _ in range(10):
    asyncio.run(main())
""",
    "a loop that ends while connecting": """
async def main():
    transport.sender.send("PING", repeatable=True)
    transport.subscriber.subscribe("channel")
    for _ in range(turns):
        await asyncio.sleep(0)
for turns in range(12):
    asyncio.run(main())
""",
    "tasks that call as the loop ends": """
saved = []
async def work():
    try:
        await asyncio.sleep(60)
    finally:
        saved.append(await transport.sender.send("ECHO", "saved", repeatable=True))
        saved.append(await transport.subscriber.subscribe("channel").next())
async def main():
    await transport.sender.send("PING", repeatable=True)
    tasks.append(asyncio.create_task(work()))
    await asyncio.sleep(0)
tasks = []
asyncio.run(main())
assert saved == [b"saved", None], saved
""",
    "a loop that is closed by hand": """
async def main():
    await transport.sender.send("PING", repeatable=True)
    await transport.subscriber.subscribe("channel").next()
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.run_until_complete(loop.shutdown_asyncgens())
loop.close()
""",
    "a loop that ends after a proper close": """
async def main():
    await transport.sender.send("PING", repeatable=True)
    await transport.subscriber.subscribe("channel").next()
    await transport.aclose()
asyncio.run(main())
""",
    "a loop whose server has stopped reading": """
async def main():
    await transport.sender.send("PING", repeatable=True)
    await transport.subscriber.subscribe("channel").next()
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    call = transport.sender.send("ECHO", bytes(8 << 20), repeatable=True, timeout_s=0.2)
    await asyncio.wait([call])
    await asyncio.sleep(0.3)
try:
    asyncio.run(main())
finally:
    os.kill(int(sys.argv[2]), signal.SIGCONT)
""",
}

# One interpreter imports for all endings. Each is a process of its own, forked from it.
ENDING = """
import asyncio, gc, json, logging, os, random, signal, sys
from pydantic import SecretStr
from redis_state.settings import Settings
from redis_state.transport.transport import Transport
# A busy machine makes steps slow, which is told as a warning. What matters are errors.
logging.getLogger("asyncio").setLevel(logging.ERROR)
for name, ending in json.loads(sys.argv[3]).items():
    pid = os.fork()
    if pid == 0:
        break
    _, status = os.waitpid(pid, 0)
    print(name, os.waitstatus_to_exitcode(status), flush=True)
    os.kill(int(sys.argv[2]), signal.SIGCONT)
else:
    sys.exit(0)
transport = Transport(Settings(url=SecretStr(sys.argv[1])))
exec(compile(ending, name, "exec"))
del transport
gc.collect()
"""


def test_end_of_a_loop_makes_no_noise() -> None:
    with start_embedded(None, binary=own_binary()) as server:
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", ENDING]
        try:
            done = children.run(
                [*command, server.url, str(server.pid), json.dumps(ENDINGS)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines() == [f"{name} 0" for name in ENDINGS]


@pytest.mark.role("any", why="it follows a channel of no namespace")
def test_it_works_in_uvloop(settings_for_loops: Settings) -> None:
    uvloop = pytest.importorskip("uvloop")
    transport = Transport(settings_for_loops)

    async def use() -> bytes:
        async with Proxy(settings_for_loops.url.get_secret_value()) as proxy:
            assert await transport.subscriber.subscribe("channel").next() is None
            async with sender_to(proxy.url) as sender:
                await sender.send("PING", repeatable=True)
                assert proxy.cut()
                assert await sender.send("ECHO", "again", repeatable=True) == b"again"
            return await echo(transport, "x" * 100_000)

    for _ in range(2):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(use()) == b"x" * 100_000
