"""The workers of `redis-state dev`: child processes that are replaced when code changes.

New workers start before the old ones are stopped. If the new ones cannot start, the old ones stay.
The old ones hand off what they run, so their tasks resume in the new code at their last step. Each
child ends with this process, even if it is killed: it reads a pipe that this process holds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from redis_state.embedded.own_settings import ALONE, OF_SERVERS, variables_of
from redis_state.errors import BackendError
from redis_state.timeouts import timeout
from redis_state.worker import TaskClient

GRACE_S = 2
_STOP_S = 15.0
_START_S = 30.0
_POLL_S = 0.05
_AGAIN_S = 1.0
_LONGEST_AGAIN_S = 30.0
# A worker that has lived for so long did not end because of its start.
_SETTLED_S = 30.0
_TAIL_LINES = 30
_LONGEST_LINE = 1 << 16
# What this process imports, from the same places; the user's code lies in the current folder.
_BOOT = "import sys; sys.path[:] = {path!r}; from redis_state.cli.main import main; main()"


@dataclass(slots=True, eq=False)
class _Child:
    process: asyncio.subprocess.Process
    since: float
    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=_TAIL_LINES))
    reader: asyncio.Task[None] | None = None
    # What is not shown until it is known whether its code can be used. None: each line at once.
    held: list[str] | None = None
    # When another one takes its place, after it ended by itself.
    again_at: float | None = None
    # How long its place last waited for another one.
    delay_s: float = 0.0


class DevWorkers:
    """Some workers of one target. Use it in ``async with``."""

    def __init__(
        self,
        client: TaskClient,
        *,
        target: str,
        size: int,
        url: str,
        say: Callable[[str], None],
        left_out: Iterable[str] = (),
    ) -> None:
        # Why new code is not used, and how a worker has ended by itself.
        self._refused: str | None = None
        self._died: str | None = None
        self._client = client
        self._target = target
        self._size = size
        # Without the variables of settings that do not count.
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        for name in variables_of(left_out, env):
            del env[name]
        self._env = {**env, "REDIS_STATE_URL": url}
        self._say = say
        self._children: list[_Child] = []
        self._changing = asyncio.Lock()
        self._guard: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.reload()
        self._guard = asyncio.create_task(self._keep(), name="redis_state dev workers")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.wait({self._guard})
        await asyncio.gather(*map(self._stop, self._children))

    @property
    def problem(self) -> str | None:
        """Why code is not used, or why a worker does not serve."""
        return self._refused or self._died

    @property
    def pids(self) -> list[int]:
        """The processes of the workers."""
        return [child.process.pid for child in self._children]

    async def handlers(self) -> list[str]:
        """Return the handlers that the workers have."""
        found = await self._client.workers()
        return sorted({name for info in found if info.pid in self.pids for name in info.handlers})

    async def reload(self) -> bool:
        """Replace the workers by new ones; return whether the new code is used."""
        async with self._changing:
            started = await self._start_all()
            if started is None:
                return False
            old, self._children = self._children, started
            self._died = None
            await asyncio.gather(*map(self._stop, old))
            return True

    async def _start_all(self) -> list[_Child] | None:
        # Of code that no worker can import one says why.
        children: list[_Child] = []
        try:
            # Those that have started are stopped if another one cannot.
            while len(children) < self._size:
                children.append(await self._launch(shown=not children))
            problems = await asyncio.gather(*map(self._problem_of, children))
        except BaseException:
            await asyncio.gather(*map(self._stop, children))
            raise
        failed = [at for at, problem in enumerate(problems) if problem is not None]
        self._refused = problems[failed[0]] if failed else None
        for child in [children[failed[0]]] if failed else children:
            self._show_held(child)
        if not failed:
            return children
        await asyncio.gather(*map(self._stop, children))
        return None

    def _show_held(self, child: _Child) -> None:
        held, child.held = child.held, None
        for line in held or ():
            self._say(line)

    async def _launch(self, *, shown: bool = True) -> _Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _BOOT.format(path=sys.path),
            "worker",
            self._target,
            "--grace",
            str(GRACE_S),
            "--stop-with-stdin",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_LONGEST_LINE,
            env=self._env,
            # The terminal's Ctrl-C is for this process, which then stops its workers in order.
            start_new_session=True,
        )
        child = _Child(process, asyncio.get_running_loop().time(), held=None if shown else [])
        child.reader = asyncio.create_task(self._read(child))
        return child

    async def _problem_of(self, child: _Child) -> str | None:
        """Wait until a worker serves; return why it does not."""
        ended = asyncio.create_task(child.process.wait())
        try:
            async with timeout(_START_S):
                while not ended.done():
                    with suppress(BackendError):
                        if child.process.pid in {w.pid for w in await self._client.workers()}:
                            return None
                    await asyncio.wait({ended}, timeout=_POLL_S)
        except TimeoutError:
            return f"{self._target} does not serve after {_START_S:.0f} s"
        finally:
            ended.cancel()
        if child.reader is not None:
            await child.reader
        return "\n".join([f"{self._target} cannot be started:", *child.lines])

    async def _keep(self) -> None:
        """Start another worker when one ends by itself: later each time, if it ends soon."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            async with self._changing:
                try:
                    await self._replace_dead()
                except OSError as error:
                    self._show(f"no worker can be started: {error}")

    async def _replace_dead(self) -> None:
        dead = [child for child in self._children if child.process.returncode is not None]
        if not dead and self._died is not None and await self._all_serve():
            self._died = None
        for child in dead:
            now = asyncio.get_running_loop().time()
            if child.again_at is None:
                settled = now - child.since >= _SETTLED_S
                child.delay_s = _next_delay(0.0 if settled else child.delay_s)
                child.again_at = now + child.delay_s
                await self._report_death(child)
            if child.again_at <= now:
                another = await self._launch()
                another.delay_s = child.delay_s
                self._children[self._children.index(child)] = another

    async def _report_death(self, child: _Child) -> None:
        if child.reader is not None:
            # What it wrote last. A process of its own may hold the pipe.
            await asyncio.wait({child.reader}, timeout=1)
        ended = f"worker {child.process.pid} ended by itself with {child.process.returncode}"
        self._show(f"{ended}; another starts in {child.delay_s:g} s", *child.lines)

    def _show(self, reason: str, *lines: str) -> None:
        problem = "\n".join([reason, *lines])
        if problem != self._died:
            self._say(reason)
        self._died = problem

    async def _all_serve(self) -> bool:
        with suppress(BackendError):
            return {*self.pids} <= {worker.pid for worker in await self._client.workers()}
        return False

    async def _read(self, child: _Child) -> None:
        stream = child.process.stdout
        while stream is not None:
            try:
                line = await stream.readline()
            except ValueError:  # longer than the limit; the rest follows
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\n")
            child.lines.append(text)
            if child.held is None:
                self._say(text)
            else:
                child.held.append(text)

    async def _stop(self, child: _Child) -> None:
        with suppress(ProcessLookupError):
            child.process.terminate()
        try:
            async with timeout(_STOP_S):
                await child.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.process.kill()
            await child.process.wait()
        if child.reader is not None:
            await asyncio.wait({child.reader}, timeout=1)
            child.reader.cancel()


def own_server_options(url: str | None) -> Mapping[str, Any]:
    """Return what replaces settings of other servers, and of places of data, by the `--url` given.

    On an embedded server its workers must not take the jobs of the queue that another server's
    tasks have. On one that nobody has named they also put nothing into production's archive.
    """
    if url is None:
        return ALONE
    return OF_SERVERS if url.startswith("embedded:") else {}


def _next_delay(delay_s: float) -> float:
    """Return after how long the next worker starts, after one that ended soon."""
    return min(max(_AGAIN_S, 2 * delay_s), _LONGEST_AGAIN_S)
