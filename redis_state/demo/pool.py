"""Worker processes and a server for a demonstration: both end with the process that starts them.

The examples use them too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from redis_state.embedded.own_settings import ALONE, variables_of
from redis_state.embedded.running import embedded_server
from redis_state.errors import ConfigError
from redis_state.timeouts import timeout
from redis_state.transport.connections.address import Address

T = TypeVar("T")

# A demonstration has one server, whatever the environment names.
_QUEUE_URL = "REDIS_STATE_QUEUE_URL"
_STOP_S = 15.0
_TAIL_LINES = 12
# Import what this process imports, from the same places, whatever lies in the current folder.
_BOOT = "import sys; sys.path[:] = {path!r}; from redis_state.cli.main import main; main()"


async def on_server(
    url: str | None, say: Callable[[str], None], run: Callable[[str], Awaitable[T]]
) -> T:
    """Run something on the named server, else on one of its own. SIGTERM cancels it too."""
    with _cancelled_by_sigterm():
        address = Address.parse(url or "embedded://")
        if url is not None and address.scheme != "embedded":
            return await run(url)
        async with embedded_server(address.directory) as server:
            say(f"started a server of its own, version {server.version}")
            with _no_variables_of_others():
                return await run(server.url)


@contextmanager
def _no_variables_of_others() -> Generator[None]:
    """Leave out, here and in workers, what the environment says of other servers and places."""
    left_out = {name: os.environ.pop(name) for name in variables_of(ALONE, os.environ)}
    try:
        yield
    finally:
        os.environ.update(left_out)


@contextmanager
def _cancelled_by_sigterm() -> Generator[None, None, None]:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


class WorkerPool:
    """Some worker processes on one server. Use it as a context manager.

    They end with this process, even if it is killed: each listens to a pipe that it holds.
    """

    def __init__(
        self,
        *,
        size: int,
        url: str,
        namespace: str,
        queue: str,
        logs: Path,
        target: str,
    ) -> None:
        self._size = size
        self._target = target
        self._queue = queue
        self._logs = logs
        self._env = {
            **{name: value for name, value in os.environ.items() if name != _QUEUE_URL},
            "REDIS_STATE_URL": url,
            "REDIS_STATE_NAMESPACE": namespace,
        }
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._guards: set[asyncio.Task[None]] = set()
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._started = 0

    async def __aenter__(self) -> Self:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"no folder can be made at {self._logs}: {error.strerror}") from error
        try:
            for _ in range(self._size):
                await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self._stop(name) for name in list(self._processes)))
        for guard in self._guards:
            guard.cancel()
        await asyncio.gather(*self._guards, return_exceptions=True)
        self._death.cancel()

    @property
    def queue(self) -> str:
        """The queue that the workers serve."""
        return self._queue

    @property
    def names(self) -> list[str]:
        """The running workers, as they name themselves in their tasks' updates."""
        return list(self._processes)

    async def death(self) -> str:
        """Wait until a worker ends by itself; return which one, and the end of its log."""
        return await asyncio.shield(self._death)

    async def retire(self, name: str) -> str:
        """End a worker as a deployment does, and return the worker that replaces it."""
        await self._stop(name)
        return await self._start()

    async def kill(self, name: str) -> str:
        """Kill a worker (-9), and return the worker that replaces it."""
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return await self._start()

    async def _start(self) -> str:
        self._started += 1
        log = self._logs / f"worker-{self._started}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _BOOT.format(path=sys.path),
                "worker",
                self._target,
                "--queue",
                self._queue,
                "--stop-with-stdin",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._env,
                # The terminal's Ctrl-C is for the demo, which then stops its workers in order.
                start_new_session=True,
            )
        name = f"{socket.gethostname()}:{process.pid}"
        self._processes[name] = process
        guard = asyncio.create_task(self._guard(name, process, log))
        self._guards.add(guard)
        guard.add_done_callback(self._guards.discard)
        return name

    async def _guard(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        code = await process.wait()
        if name in self._processes and not self._death.done():
            lines = await asyncio.to_thread(_tail, log)
            self._death.set_result(f"worker {name} ended with status {code}, see {log}:{lines}")

    async def _stop(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n    ".join(["", *lines])
