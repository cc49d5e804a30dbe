"""One check under way: its namespace, its worker processes, and what they have done."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from pydantic import SecretStr

from redis_state.migration.content import KINDS
from redis_state.migration.namespace import ServerNamespace
from redis_state.models import StateUpdate, TaskState, TaskStatus, UpdateType
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.testing import eventually
from redis_state.testing.conformance.host import (
    EFFECTS,
    EffectLine,
    HostUnderTest,
    read_lines,
    release,
    text_of,
)
from redis_state.testing.conformance.orders import HANDLER, WorkerOrder
from redis_state.testing.stores import own_settings
from redis_state.timeouts import timeout
from redis_state.worker import OpenPause, TaskClient
from redis_state.worker.runs.waiting import shielded

T = TypeVar("T")

# Of a worker that is to be killed: another one waits so long for its task.
SHORT_LEASE_S: Final = 0.6
LONG_LEASE_S: Final = 10.0
# How long a worker that stops lets its tasks run.
LONG_GRACE_S: Final = 2.0
SHORT_GRACE_S: Final = 0.1
_LAST_LINES: Final = 4
_WORKER: Final = "redis_state.testing.conformance.worker"


@dataclass(frozen=True, slots=True)
class Sent:
    """A task that runs the errand, and the mark that all its texts have."""

    mark: str
    session_id: str
    task_id: str
    decided: list[str] = field(default_factory=list[str])


class Trial:
    """One check under way."""

    def __init__(
        self, reference: str, host: HostUnderTest, settings: Settings, *, timeout_s: float
    ) -> None:
        self.host: HostUnderTest = host
        self.settings: Settings = settings
        self.processes: int = 0
        self.kills: int = 0
        self._reference = reference
        self._timeout_s = timeout_s
        self._running: dict[asyncio.subprocess.Process, int] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="conformance-"))
            self._folder = Path(folder)
            self.store: RedisStateStore = await stack.enter_async_context(
                RedisStateStore(self.settings)
            )
            stack.push_async_callback(self._drop)
            self.client: TaskClient = await stack.enter_async_context(TaskClient(self.store))
            stack.push_async_callback(self._end_workers)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        # Even if it is cancelled at its end: no worker and no key may be left.
        await shielded(self._stack.aclose())

    async def start(
        self,
        *,
        kill: Sequence[str] = (),
        hold: Sequence[str] = (),
        grace_s: float = LONG_GRACE_S,
    ) -> asyncio.subprocess.Process:
        """Start a worker process, which dies in the effects of ``kill`` and waits in ``hold``."""
        self.processes += 1
        keys = self.settings.payload_keys
        order = WorkerOrder(
            reference=self._reference,
            url=self.settings.url.get_secret_value(),
            namespace=self.settings.namespace,
            payload_keys=None if keys is None else keys.get_secret_value(),
            folder=str(self._folder),
            name=f"worker-{self.processes}",
            kill=list(kill),
            hold=list(hold),
            lease_s=SHORT_LEASE_S if kill else LONG_LEASE_S,
            grace_s=grace_s,
            parent=os.getpid(),
        )
        path = os.pathsep.join(filter(None, sys.path))
        with self._log(self.processes).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _WORKER,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, **order.environment()},
            )
        self._running[process] = self.processes
        return process

    async def submit(
        self, mark: str | None = None, *, session_id: str = "s", task_id: str = "t"
    ) -> Sent:
        """Submit a task that runs the errand."""
        mark = mark or f"mark{uuid.uuid4().hex}"
        task_input = self.host.task_input(mark)
        await self.client.submit(HANDLER, task_input, session_id=session_id, task_id=task_id)
        return Sent(mark, session_id, task_id)

    async def paused(self, sent: Sent) -> OpenPause:
        """Wait until a task waits for a person and has freed its worker; return its pause."""

        async def found() -> list[OpenPause] | None:
            state = await self._state(sent)
            if state.status.is_terminal:
                raise AssertionError(f"the task asked nobody: it {_ended(state)}")
            return await self._open(sent) if state.status is TaskStatus.PAUSED else None

        pauses = await self._wait(found, "the task is PAUSED with an open pause")
        if len(pauses) != 1:
            raise AssertionError(f"the errand asks once, and {len(pauses)} pauses are open")
        return pauses[0]

    async def approve(
        self, sent: Sent, pause: OpenPause, answer: str, *, client: TaskClient | None = None
    ) -> None:
        """Approve a pause. Errors: TokenResolved."""
        sent.decided.append(_id_of(pause))
        value = self.host.decision(sent.mark, answer)
        await (client or self.client).approve(_id_of(pause), value, actor=answer.partition(" ")[0])

    async def completed(self, sent: Sent) -> str:
        """Wait until a task is COMPLETE, and return its result as text."""
        state = await self.ended(sent)
        if state.status is not TaskStatus.COMPLETE:
            raise AssertionError(f"the task {_ended(state)}")
        return _text(state.result)

    async def ended(self, sent: Sent) -> TaskState:
        """Wait until a task is terminal; it must not ask again."""

        async def found() -> TaskState | None:
            state = await self._state(sent)
            if state.status is TaskStatus.PAUSED and await self._open(sent):
                raise AssertionError("the task asks a second time what was decided")
            return state if state.status.is_terminal else None

        return await self._wait(found, "the task has ended")

    async def dies(self, process: asyncio.subprocess.Process, sent: Sent, effect: str) -> None:
        """Wait until a worker has killed itself in an effect."""

        async def found() -> bool:
            state = await self._state(sent)
            if state.status.is_terminal and process.returncode is None:
                raise AssertionError(f"the task never began {effect!r}: it {_ended(state)}")
            return process.returncode is not None

        await self._wait(found, f"the worker has begun {effect!r} and is killed", watch=False)
        if await process.wait() != -signal.SIGKILL:
            raise AssertionError(self._death(process))
        self.kills += 1
        del self._running[process]

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """Kill a worker process."""
        process.kill()
        await process.wait()
        self.kills += 1
        del self._running[process]

    async def stop(self, process: asyncio.subprocess.Process) -> None:
        """Stop a worker in good order, and wait for its end."""
        process.terminate()
        await self.stopped(process)

    async def stopped(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the end of a worker that stops."""
        try:
            async with timeout(self._timeout_s):
                await process.wait()
        except TimeoutError:
            raise AssertionError(
                f"a worker does not stop{self._last_lines(self.processes)}"
            ) from None
        del self._running[process]

    async def handed_off(self, sent: Sent) -> None:
        """Wait until the worker that stops has given its task back."""

        async def found() -> bool:
            state = await self._state(sent)
            if state.status.is_terminal:
                raise AssertionError(f"the task is not handed off: it {_ended(state)}")
            return state.status is TaskStatus.PENDING

        await self._wait(found, "the task is handed off", watch=False)

    async def begun(self, sent: Sent, effect: str) -> None:
        """Wait until an effect has begun."""

        async def found() -> bool:
            state = await self._state(sent)
            if state.status.is_terminal:
                raise AssertionError(f"the task never began {effect!r}: it {_ended(state)}")
            return any(line.effect == effect for line in self.lines(sent))

        await self._wait(found, f"{effect!r} has begun")

    async def until(self, condition: Callable[[], bool], described: str) -> None:
        """Wait until a condition holds, as long as no worker ends."""

        async def found() -> bool:
            return condition()

        await self._wait(found, described)

    def release(self) -> None:
        """Release the effects that are held."""
        release(self._folder)

    def lines(self, sent: Sent) -> list[EffectLine]:
        """Read what the effects of a task left."""
        return [line for line in read_lines(self._folder) if line.mark == sent.mark]

    def expect_once(self, sent: Sent, why: str) -> None:
        """Check that each effect has ended once."""
        ended = Counter(line.effect for line in self.lines(sent) if line.ended)
        for effect in EFFECTS:
            if ended[effect] != 1:
                times = f"{ended[effect]} times instead of once"
                raise AssertionError(f"{effect!r} was made {times}: {why}")

    def expect_result(self, sent: Sent, result: str, answer: str) -> None:
        """Check that a result has the texts of all effects and the answer."""
        for part in [*(text_of(effect, sent.mark) for effect in EFFECTS), answer]:
            if part not in result:
                shown = part.replace(sent.mark, "<mark>")
                raise AssertionError(f"the result lacks {shown!r}")

    async def updates(self, sent: Sent) -> list[StateUpdate]:
        """List the updates of a task, without the changes of its status."""
        rows = await self.store.list_updates(sent.session_id, task_id=sent.task_id)
        return [row for row in rows if row.update_type is not UpdateType.STATUS_CHANGE]

    async def holding(self, word: str) -> list[str]:
        """List the keys of the namespace that have a word in their name or in what they hold."""
        found: list[str] = []
        async with ServerNamespace(self.settings) as namespace:
            async for key in self._keys():
                content, _ = await namespace.read(key)
                if content is not None and content.kind not in KINDS:
                    raise AssertionError(f"{key} is a {content.kind}, which nothing here reads")
                if word in key or (content is not None and content.holds(word.encode())):
                    found.append(key)
        return sorted(found)

    async def permanent(self) -> list[str]:
        """List the keys without a lifetime whose names have the namespace, wherever in them."""
        commands = self.store.transport.commands
        return sorted([key async for key in self._keys() if await commands.pttl(key) == -1])

    async def _keys(self) -> AsyncGenerator[str]:
        for server in await self.store.transport.each_primary():
            async for page in server.scan_all(f"*{self.settings.namespace}*"):
                for key in page:
                    yield key.decode("utf-8", "surrogateescape")

    async def _state(self, sent: Sent) -> TaskState:
        state = await self.client.get(sent.session_id, sent.task_id)
        if state is None:
            raise AssertionError("the task is gone")
        return state

    async def _open(self, sent: Sent) -> list[OpenPause]:
        pauses = await self.client.pauses(sent.session_id)
        return [
            pause
            for pause in pauses
            if pause.task_id == sent.task_id and pause.pause_id not in sent.decided
        ]

    async def _wait(
        self, condition: Callable[[], Awaitable[T | None]], described: str, *, watch: bool = True
    ) -> T:
        """Wait for a condition, as long as no worker ends that nobody has killed."""

        async def look() -> T | None:
            dead = [each for each in self._running if each.returncode is not None]
            if dead and watch:
                raise AssertionError(self._death(dead[0]))
            return await condition()

        try:
            found = await eventually(look, described, timeout_s=self._timeout_s)
            return cast("T", found)
        except AssertionError as failed:
            if not str(failed).startswith("not within"):
                raise
            raise AssertionError(f"{failed}{self._last_lines(self.processes)}") from None

    def _death(self, process: asyncio.subprocess.Process) -> str:
        ended = f"a worker ended with status {process.returncode}"
        return ended + self._last_lines(self._running[process])

    def _last_lines(self, number: int) -> str:
        path = self._log(number)
        lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
        return "".join(f"\n    {line}" for line in lines[-_LAST_LINES:])

    def _log(self, number: int) -> Path:
        return self._folder / f"worker-{number}.log"

    async def _end_workers(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self._running:
            await process.wait()

    async def _drop(self) -> None:
        async for key in self._keys():
            await self.store.transport.commands.unlink(key)


@asynccontextmanager
async def open_trial(
    reference: str, host: HostUnderTest, *, url: str, payload_keys: str | None, timeout_s: float
) -> AsyncGenerator[Trial]:
    """Open a trial in a namespace of its own, whose keys are deleted at the end."""
    keys = None if payload_keys is None else SecretStr(payload_keys)
    namespace = f"conformance-{uuid.uuid4().hex[:12]}"
    settings = own_settings(url, namespace, payload_keys=keys)
    async with Trial(reference, host, settings, timeout_s=timeout_s) as trial:
        yield trial


def _id_of(pause: OpenPause) -> str:
    if pause.pause_id is None:
        raise AssertionError("the pause is not revealed, so nobody finds it")
    return pause.pause_id


def _ended(state: TaskState) -> str:
    return f"is {state.status.value}" + (f" ({state.error})" if state.error else "")


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
