"""Processes that begin with the packages imported: forked from one that has done it before.

Importing takes most of the time of a short process. Each is a real one all the same: it leads a
group of its own, is killed and stopped like any other, and has its own environment, loop and random
numbers. A test of imports, of the interpreter's options or of the installed command uses
`children.start` instead.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

from tests.support import children

# Whatever of it there is: the suite also runs without the queue and without PenguiFlow.
_PRELOADED = (
    "redis_state.worker",
    "redis_state.agents",
    "redis_state.testing",
    "redis_state.integrations.penguiflow",
    "redis_state.cli.tasks",
    "redis_state.cli.control",
    "redis_state.cli.session",
    "examples.a2a_server.server",
    "penguiflow.planner",
    "tests.support.faults",
)


class ForkedProcess:
    """A process of the fork server, with what tests need of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, status: asyncio.StreamReader, pipes: _Pipes) -> None:
        self.pid: int = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = pipes.stdin
        self.stdout: asyncio.StreamReader = pipes.stdout
        self.stderr: asyncio.StreamReader = pipes.stderr
        self._pipes = pipes
        self._ended = asyncio.create_task(self._end(status))

    async def wait(self) -> int:
        """Wait for the end; return the status, minus the signal for one that was killed."""
        return await asyncio.shield(self._ended)

    async def communicate(self, given: bytes | None = None) -> tuple[bytes, bytes]:
        """Write to its standard input, read all that it prints, and wait for its end."""
        if self.stdin is not None:
            with suppress(ConnectionError):
                self.stdin.write(given or b"")
                await self.stdin.drain()
                self.stdin.close()
        try:
            out, err = await asyncio.gather(self.stdout.read(), self.stderr.read())
        except RuntimeError:  # another task reads what it prints
            await self._close()
            raise
        await self._close()
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def _close(self) -> None:
        await self.wait()
        self._pipes.close()

    async def _end(self, status: asyncio.StreamReader) -> int:
        """Read how it ended, and to the end of its pipes: a loop may close right after."""
        self.returncode = int(await status.readline())
        await status.read()
        return self.returncode


class _Pipes:
    """The test's ends of a process's pipes."""

    def __init__(self) -> None:
        self.stdin: asyncio.StreamWriter | None = None
        self._transports: list[asyncio.BaseTransport] = []

    def close(self) -> None:
        """Close them."""
        for transport in self._transports:
            transport.close()

    async def open(self, *, stdin: bool) -> tuple[list[int], asyncio.StreamReader]:
        """Open them; return the process's ends, and what its status comes by."""
        theirs: list[int] = []
        if stdin:
            read, write = os.pipe()
            theirs.append(read)
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin, os.fdopen(write, "wb", 0)
            )
            self._transports.append(transport)
            self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        else:
            theirs.append(os.open(os.devnull, os.O_RDONLY))
        self.stdout = await self._reading(theirs)
        self.stderr = await self._reading(theirs)
        status = await self._reading(theirs)
        return theirs, status

    async def _reading(self, theirs: list[int]) -> asyncio.StreamReader:
        read, write = os.pipe()
        theirs.append(write)
        reader = asyncio.StreamReader(limit=1 << 24)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", 0)
        )
        self._transports.append(transport)
        return reader


class _ForkServer:
    """The server of this test process, started at its first use."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    async def start(
        self, argv: Sequence[str], environment: Mapping[str, str], folder: str, *, stdin: bool
    ) -> ForkedProcess:
        """Run a script with its arguments."""
        if self._socket is None:
            self._socket = self._launch(environment)
        pipes = _Pipes()
        theirs, status = await pipes.open(stdin=stdin)
        request = json.dumps([list(argv), dict(environment), folder]).encode()
        try:
            # Without giving way: two requests must not be mixed. The server reads at once.
            whole = len(request).to_bytes(4, "big") + request
            sent = socket.send_fds(self._socket, [whole], theirs)
            self._socket.sendall(whole[sent:])
        finally:
            for number in theirs:
                os.close(number)
        try:
            pid = int(await status.readline())
        except BaseException:
            pipes.close()
            raise
        return ForkedProcess(pid, status, pipes)

    def _launch(self, environment: Mapping[str, str]) -> socket.socket:
        ours, its = socket.socketpair()
        stack = ExitStack()
        atexit.register(stack.close)
        command = [sys.executable, "-m", "tests.support.forkserver", str(its.fileno())]
        root = str(children.ROOT)
        path = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
        stack.enter_context(
            children.popen(
                command, pass_fds=[its.fileno()], env={**environment, "PYTHONPATH": path}
            )
        )
        its.close()
        stack.callback(ours.close)
        return ours


_server = _ForkServer()


async def start(
    script: str | Path,
    *arguments: str,
    environment: Mapping[str, str],
    folder: str | Path | None = None,
    stdin: bool = False,
) -> ForkedProcess:
    """Run a script with its arguments in a folder, as ``python script ...`` does."""
    where = str(folder or Path.cwd())
    process = await _server.start([str(script), *arguments], environment, where, stdin=stdin)
    children.adopt(process.pid)
    return process


def serve(number: int) -> None:
    """Fork a process for each request, and report how each ended, until the test process ends."""
    for name in _PRELOADED:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=number)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, _wake)
    reports: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 1 << 10)
                _report(reports)
            if requests.fileno() in ready:
                head, theirs, _, _ = socket.recv_fds(requests, 4, 4)
                if not head:
                    return
                request = _exactly(requests, int.from_bytes(head, "big"))
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    requests.close()
                    # Held open here, the pipes of others would not end with them.
                    for each in reports.values():
                        os.close(each)
                    _become(theirs, *json.loads(request))
                reports[pid] = theirs.pop()
                for each in theirs:
                    os.close(each)
                # It may have ended before it was noted.
                _report(reports)


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: that there is a handler wakes the selector."""
    del number, frame


def _exactly(requests: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += requests.recv(length - len(data))
    return data


def _report(reports: dict[int, int]) -> None:
    """Write how each process ended that has ended by now."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        number = reports.pop(pid)
        with suppress(BrokenPipeError):
            os.write(number, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(number)


def _become(
    theirs: list[int], argv: list[str], environment: dict[str, str], folder: str
) -> NoReturn:
    """Be a process that was just started, and run the script to its end."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for place, number in enumerate(theirs[:3]):
        os.dup2(number, place)
        os.close(number)
    # A process that it starts itself must not keep the test waiting for its status.
    os.set_inheritable(theirs[3], False)  # noqa: FBT003
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if not any(name.startswith("COVERAGE_") for name in environment):
        sys.settrace(None)
    sys.argv[:] = argv
    sys.path[0] = str(Path(argv[0]).parent)
    random.seed()
    os.write(theirs[3], b"%d\n" % os.getpid())
    os.close(theirs[3])
    status: Any = 1
    try:
        runpy.run_path(argv[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        _exit(status)


def _exit(status: Any) -> NoReturn:
    """End as the interpreter does: threads, what was registered, what is printed."""
    code = status if isinstance(status, int) else int(status is not None)
    with suppress(BaseException):
        if status is not None and not isinstance(status, int):
            sys.stderr.write(f"{status}\n")
        cast("Any", threading)._shutdown()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
