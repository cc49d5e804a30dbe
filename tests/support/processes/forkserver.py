"""Processes that begin with the packages imported: forked from one that has done it before.

Importing takes most of the time of a short process. Each is a real one all the same: it leads a
group of its own, is killed and stopped like any other, and has its own environment, loop and random
numbers. A test of imports, of the interpreter's options or of the installed command uses
`children.start` instead.

All test processes share one fork server (`tests/support/processes/forking.py`). It ends with the
process that started it.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.support.processes import children

# Of the running fork server: its socket.
_ADDRESS = "REDIS_STATE_TEST_FORKS"
# What NumPy and pyarrow would begin with threads: a process that has any is not safe to fork.
_WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# Before Python 3.11.5, source that is parsed while the collector ends a task with an error fails:
# the error's traceback parses source too, to show columns ("AST constructor recursion depth
# mismatch").
_WITHOUT_COLUMNS = {"PYTHONNODEBUGRANGES": "1"} if sys.version_info < (3, 11, 5) else {}
_ended_s = 0.0
_own_child = False
_begin_interpreter = asyncio.create_subprocess_exec


def launch() -> Callable[[], None]:
    """Start the fork server of this process and of those that it starts; return how to end it."""
    with ExitStack() as undo:
        address = undo.enter_context(serving())
        global _own_child  # noqa: PLW0603 - one server for the process
        _own_child = True
        os.environ[_ADDRESS] = address
        undo.callback(os.environ.pop, _ADDRESS)
        return undo.pop_all().close
    raise AssertionError


def is_shared() -> bool:
    """Return whether this process has a fork server, or a run of tests around it."""
    return _ADDRESS in os.environ


@contextmanager
def serving(*collecting: str, **options: Any) -> Generator[str]:
    """Run a fork server and give its socket. With arguments of pytest it imports those tests."""
    folder = tempfile.mkdtemp(prefix="rs-", dir="/tmp")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/fork.sock")
            listener.listen(128)
            path = os.pathsep.join([str(children.ROOT), *filter(None, sys.path)])
            command = ["-m", "tests.support.processes.forking", str(listener.fileno())]
            with children.popen(
                [sys.executable, *command, *collecting],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                env={**os.environ, **_WITHOUT_THREADS, **_WITHOUT_COLUMNS, "PYTHONPATH": path},
                **options,
            ):
                yield f"{folder}/fork.sock"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ended_s() -> float:
    """Return the CPU seconds of what a server has forked here that is no child of this process."""
    return 0.0 if _own_child else _ended_s


class ForkedProcess:
    """A process of the fork server, with what tests need of `asyncio.subprocess.Process`."""

    def __init__(
        self, pid: int, status: tuple[asyncio.BaseTransport, asyncio.StreamReader], pipes: _Pipes
    ) -> None:
        self.pid: int = pid
        self.returncode: int | None = None
        self._pipes = pipes
        self._ended = asyncio.create_task(self._end(*status))

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """What it reads, if a test writes that."""
        return self._pipes.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What it prints; nothing if it prints elsewhere."""
        return self._pipes.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        """What it complains of; nothing if it does so elsewhere."""
        return self._pipes.stderr

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
            children.counted["killed"] += number == signal.SIGKILL
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

    async def _end(self, connection: asyncio.BaseTransport, status: asyncio.StreamReader) -> int:
        self.returncode = _note_end(await status.readline())
        connection.close()
        return self.returncode


class ForkedPopen:
    """A process of the fork server without a loop, with what tests need of `subprocess.Popen`."""

    def __init__(self, *command: str, environment: Mapping[str, str]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = pipes
        request = _request(command, environment, Path.cwd(), [theirs_in, theirs_out, theirs_err])
        self.stdin: IO[str] = os.fdopen(ours_in, "w", encoding="utf-8")
        self.stdout: IO[str] = os.fdopen(ours_out, encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(ours_err, encoding="utf-8")
        with request:
            self._status: IO[bytes] = request.makefile("rb")
        self.pid: int = int(self._status.readline())
        self.returncode: int | None = None
        children.adopt(self.pid)

    def communicate(self, given: str = "") -> tuple[str, str]:
        """Write what it reads, read all that it prints, and wait for its end. Safe to repeat."""
        if self.returncode is not None:
            return "", ""
        with suppress(BrokenPipeError), self.stdin:
            self.stdin.write(given)
        with self.stdout, self.stderr, self._status:
            printed = self.stdout.read(), self.stderr.read()
            self.returncode = _note_end(self._status.readline())
        return printed

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


async def start(
    *command: str | Path,
    environment: Mapping[str, str],
    folder: str | Path | None = None,
    stdin: bool = False,
) -> ForkedProcess:
    """Run a program in a folder: a script, ``-m <module>`` or ``-c <code>``, with its arguments.

    The process ends with the test.
    """
    given = asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL
    process = await _fork(
        command,
        environment,
        folder or Path.cwd(),
        (given, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE),
    )
    children.adopt(process.pid)
    return process


@asynccontextmanager
async def running(*command: str | Path, **options: Any) -> AsyncGenerator[ForkedProcess, None]:
    """Run a program for the length of the block, with the options of `start`."""
    process = await start(*command, **options)
    try:
        yield process
    finally:
        await children.end(process)


async def execute(*command: str, **options: Any) -> Any:
    """Fork where `asyncio.create_subprocess_exec` would start this interpreter again.

    A process of a test that starts others puts it in its place (`tests/processes/forking.py`).
    """
    if command[0] != sys.executable:
        return await _begin_interpreter(*command, **options)
    streams = [options.get(name) for name in ("stdin", "stdout", "stderr")]
    environment = options.get("env") or os.environ
    return await _fork(command[1:], environment, options.get("cwd") or Path.cwd(), streams)


async def _fork(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    folder: str | Path,
    streams: Sequence[Any],
) -> ForkedProcess:
    pipes = _Pipes()
    theirs = [await pipes.open(place, wanted) for place, wanted in enumerate(streams)]
    request = _request(command, environment, folder, theirs)
    status = asyncio.StreamReader()
    connection, _ = await asyncio.get_running_loop().create_unix_connection(
        lambda: asyncio.StreamReaderProtocol(status), sock=request
    )
    try:
        pid = int(await status.readline())
    except BaseException:
        # As asyncio does if its caller is cancelled: nobody else would end the process.
        if started := await status.readline():
            with suppress(ProcessLookupError):
                os.kill(int(started), signal.SIGKILL)
        connection.close()
        pipes.close()
        raise
    return ForkedProcess(pid, (connection, status), pipes)


def _request(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    folder: str | Path,
    theirs: Sequence[int],
) -> socket.socket:
    """Request a process, and close the ends of the pipes that are its."""
    if not is_shared():
        atexit.register(launch())
    words = [str(word) for word in command]
    own = {**environment, _ADDRESS: os.environ[_ADDRESS]}
    document = {"command": words, "environment": own, "folder": str(folder)}
    data = json.dumps(document).encode()
    whole = len(data).to_bytes(4, "big") + data
    request = socket.socket(socket.AF_UNIX)
    try:
        request.connect(os.environ[_ADDRESS])
        sent = socket.send_fds(request, [whole], theirs)
        if rest := whole[sent:]:  # else the process may have ended already
            request.sendall(rest)
    except BaseException:
        request.close()
        raise
    finally:
        for number in theirs:
            os.close(number)
    return request


def _note_end(line: bytes) -> int:
    global _ended_s  # noqa: PLW0603 - one count for the process
    code, seconds = line.split()
    _ended_s += float(seconds)
    return int(code)


class _Pipes:
    """The test's ends of a process's standard streams."""

    def __init__(self) -> None:
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader = asyncio.StreamReader(limit=1 << 24)
        self.stderr: asyncio.StreamReader = asyncio.StreamReader(limit=1 << 24)
        self._ours: list[asyncio.BaseTransport] = []

    def close(self) -> None:
        """Close them."""
        for each in self._ours:
            each.close()

    async def open(self, place: int, wanted: Any) -> int:
        """Open a stream as `asyncio.create_subprocess_exec` does; return the process's end."""
        if wanted == asyncio.subprocess.PIPE:
            return await (self._written() if place == 0 else self._read(place))
        if place > 0:
            (self.stdout if place == 1 else self.stderr).feed_eof()
        if wanted == asyncio.subprocess.DEVNULL:
            return os.open(os.devnull, os.O_RDWR)
        return os.dup(
            place if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
        )

    async def _written(self) -> int:
        read, write = os.pipe()
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(write, "wb", 0)
        )
        self._ours.append(transport)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        return read

    async def _read(self, place: int) -> int:
        read, write = os.pipe()
        reader = self.stdout if place == 1 else self.stderr
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", 0)
        )
        self._ours.append(transport)
        return write
