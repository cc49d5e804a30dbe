"""The demo's worker processes: started, retired by name, and gone when the demo is."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from redis_state.demo.tasks import review_document
from redis_state.errors import ConfigError
from redis_state.worker import AgentWorker

worker: AgentWorker = AgentWorker({"review_document": review_document}, max_tasks=4, grace_s=2.0)
# Its tasks are with another worker a few seconds after its death.
mortal: AgentWorker = replace(worker, lease_s=3.0)

# The demo has one server, whatever the environment says.
_QUEUE_URL = "REDIS_STATE_QUEUE_URL"
_STOP_S = 15.0
_TAIL_LINES = 12
# Import what this process imports, from the same places, whatever lies in the current folder.
_BOOT = "import sys; sys.path[:] = {path!r}; from redis_state.cli.main import main; main()"


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
        target: str = "redis_state.demo.pool:worker",
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
    def names(self) -> list[str]:
        """The running workers, as they name themselves in their tasks' updates."""
        return list(self._processes)

    async def death(self) -> str:
        """Wait until a worker ends without being asked to; return which, and its last words."""
        return await asyncio.shield(self._death)

    async def retire(self, name: str) -> str:
        """End a worker as a deployment does, and put a new one in its place; name the new one."""
        await self._stop(name)
        return await self._start()

    async def kill(self, name: str) -> str:
        """Kill a worker (-9), and put a new one in its place; name the new one."""
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
            said = await asyncio.to_thread(_tail, log)
            self._death.set_result(f"worker {name} ended with status {code}, see {log}:{said}")

    async def _stop(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n    ".join(["", *lines])
