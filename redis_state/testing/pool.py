"""A worker in a test, on a real server, whose time the test skips.

    async def remind(ctx: TaskContext) -> str:
        await ctx.sleep(timedelta(days=3))
        return f"reminded {ctx.input}"

    async def test_ann_is_reminded() -> None:
        async with Pool({"remind": remind}) as pool:
            task = await pool.client.submit("remind", "ann", session_id="s")
            await pool.skip(timedelta(days=3))
            assert await pool.client.result("s", task) == "reminded ann"

What the library decides by time is decided by the server's clock. A pool has a namespace of its own
whose clock can be moved on: sleeps, deadlines of pauses, escalations, timeouts of messages, delayed
tasks, schedules and rates follow it, and so do lifetimes. What shows that a process is alive
follows real time: leases, heartbeats, and the entries of workers. So does whatever waits in a
process: a sleep of a second or less, `task_timeout_s`, ``asyncio.sleep``, the handler's own clock.
A step's retries do not wait at all. Needs the extra ``worker``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Protocol, Self

import stamina
from pydantic import SecretStr

from redis_state import limits
from redis_state.embedded.own_settings import OF_SERVERS, arguments_of
from redis_state.embedded.running import embedded_server
from redis_state.errors import InvalidField
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.testing import leaked_keys
from redis_state.testing.clock import Agenda, ClockSettings, Moment
from redis_state.transport.movable_clock import TEST_CLOCK
from redis_state.worker import AgentWorker, TaskClient
from redis_state.worker.pool.process import WorkerConfig, run_forever
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.sweeper import Sweeper
from redis_state.worker.runs.config import Handler
from redis_state.worker.schedules.runner import ScheduleRunner

__all__ = ["ClockSettings", "Pool", "open_pools"]

# A worker's own would be added to each stop of the clock.
_POLL_S = 0.005
_SWEEP_S = 0.25
_CHECK_S = 0.002
_LONGEST_CHECK_S = 0.02
# A day of a pool's life is never skipped at once: what is renewed once a day is renewed.
_DAY_MS = 86_400_000
_LONGEST = timedelta(days=3650)


class _PoolWorker(AgentWorker):
    """A worker whose pool sweeps and runs the schedules."""

    def _worker_config(self) -> WorkerConfig:
        return replace(super()._worker_config(), sweeps=False, schedules=False)


class Pool:
    """A worker and a client in this process, in a namespace of their own whose time can be skipped.

    ``worker`` are handlers, or an `AgentWorker` with its options. Of its settings those about
    servers do not count, nor what the environment says. ``url`` is the server; without one the pool
    starts one of its own. ``patience_s`` is how long a skip waits, in real time, for one task that
    runs or that no worker takes; then time passes for it too. ``settings`` are for further stores
    and workers of the test, in any process.
    """

    settings: ClockSettings
    store: RedisStateStore
    client: TaskClient

    def __init__(
        self,
        worker: AgentWorker | Mapping[str, Handler],
        *,
        url: str | None = None,
        patience_s: float = 5.0,
    ) -> None:
        limits.seconds("patience_s", patience_s, least=0)
        given = worker if isinstance(worker, AgentWorker) else AgentWorker(worker)
        self._given = given
        self._url = url
        self._patience_s = patience_s
        self._stack = AsyncExitStack()
        # Of the sweeps: one that is under way has not happened yet.
        self._sweeping = asyncio.Lock()
        self._skipping = asyncio.Lock()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            url = self._url
            if url is None:
                url = (await stack.enter_async_context(embedded_server(None))).url
            self.settings = _clock_settings(self._given.settings, url)
            # A wait between two attempts is one of the process, which no clock ends.
            stack.enter_context(_without_waits())
            self.store = await stack.enter_async_context(RedisStateStore(self.settings))
            self.client = await stack.enter_async_context(TaskClient(self.store))
            worker = self._worker()
            queue = Queue(self.store, name=worker.queue_names[0])
            stack.push_async_callback(queue.aclose)
            self._sweeper = Sweeper(
                self.store,
                queue,
                lease_ms=round(worker.lease_s * 1000),
                max_crashes=worker.max_crashes,
                queues=worker.queue_names,
                archiving=self.settings.has_archive,
            )
            self._schedules = ScheduleRunner(self.store, queue)
            self._agenda = Agenda(self.store, queue, worker.queue_names)
            self._running = [
                asyncio.create_task(worker.serve(handle_signals=False), name="pool worker"),
                asyncio.create_task(run_forever(self._sweep_regularly, "pool"), name="pool"),
            ]
            stack.push_async_callback(self._stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def now(self) -> datetime:
        """Return the time of the pool."""
        return datetime.fromtimestamp(await self._agenda.now_ms() / 1000, tz=UTC)

    async def skip(self, by: timedelta) -> None:
        """Skip time. Everything that is due by then happens, in the order of the due times.

        The clock stops at each moment at which something is due, until nothing that it caused runs
        any more. A task that runs on for ``patience_s`` keeps its lease, and no other worker takes
        it. Errors: InvalidField; BackendError; the worker's own, if it has ended.
        """
        await self._skip("by", by)

    async def result(
        self, session_id: str, task_id: str, *, within: timedelta = timedelta(days=366)
    ) -> Any:
        """Skip as much time as a task needs to end, and return its result.

        Errors: those of `TaskClient.result`, without a wait; TimeoutError if it has not ended
        ``within`` that time, or waits for what no time brings; those of `skip`.
        """

        async def has_ended() -> bool:
            state = await self.client.get(session_id, task_id)
            return state is None or state.status.is_terminal

        await self._skip("within", within, until=has_ended)
        if not await has_ended():
            raise TimeoutError(f"task {task_id} has not ended by {await self.now():%c}")
        return await self.client.result(session_id, task_id)

    async def _skip(
        self, name: str, by: timedelta, *, until: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """Skip time, or less: ``until`` a condition holds, or nothing is due any more."""
        given: Any = by
        if not isinstance(given, timedelta) or not timedelta(0) <= given <= _LONGEST:
            raise InvalidField(name, "needs a timedelta from 0 to ten years")
        async with self._skipping:
            given_up: set[str] = set()
            end_ms = (await self._settle(given_up)).now_ms + ms(by)
            while until is None or not await until():
                async with self._sweeping:
                    moment = await self._agenda.read()
                    if moment.busy <= given_up:
                        nothing_left = until is not None and moment.next_ms is None
                        if nothing_left or moment.now_ms >= end_ms:
                            return
                        next_ms = min(moment.next_ms or end_ms, moment.now_ms + _DAY_MS)
                        await self._agenda.skip_to(min(next_ms, end_ms))
                await self._settle(given_up)

    async def _settle(self, given_up: set[str]) -> Moment:
        """Wait until nothing happens any more, but for what has used up the patience."""
        seen: dict[str, float] = {}
        check_s = _CHECK_S
        while True:
            self._raise_if_ended()
            await self._sweep()
            moment = await self._agenda.read()
            now_s = monotonic()
            seen = {each: seen.get(each, now_s) for each in moment.busy - given_up}
            given_up |= {each for each, at_s in seen.items() if now_s - at_s > self._patience_s}
            if moment.busy <= given_up:
                return moment
            await asyncio.sleep(check_s)
            check_s = min(check_s * 1.2, _LONGEST_CHECK_S)

    async def _sweep(self) -> None:
        """Do what is due by the clock of now, until nothing is."""
        async with self._sweeping:
            while (await self._sweeper.run_once()).looked:
                pass
            while await self._schedules.run_once():
                pass

    async def _sweep_regularly(self) -> None:
        while True:
            await self._sweep()
            await asyncio.sleep(_SWEEP_S)

    def _worker(self) -> AgentWorker:
        options = {each.name: getattr(self._given, each.name) for each in fields(self._given)}
        options |= {"settings": self.settings, "poll_s": min(_POLL_S, self._given.poll_s)}
        return _PoolWorker(**options)

    def _raise_if_ended(self) -> None:
        for task in self._running:
            if task.done():
                task.result()

    async def _stop(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.wait(self._running)


class OpenPool(Protocol):
    """Open a pool, until the end of the test."""

    async def __call__(
        self, worker: AgentWorker | Mapping[str, Handler], *, patience_s: float = 5.0
    ) -> Pool:
        """Open it. See `Pool`."""
        ...


@asynccontextmanager
async def open_pools(url: str) -> AsyncGenerator[OpenPool]:
    """Give what opens pools on a server, and check that no key of them would stay for ever."""
    pools: list[Pool] = []
    async with AsyncExitStack() as stack:

        async def opened(
            worker: AgentWorker | Mapping[str, Handler], *, patience_s: float = 5.0
        ) -> Pool:
            pool = await stack.enter_async_context(Pool(worker, url=url, patience_s=patience_s))
            pools.append(pool)
            return pool

        yield opened
    for pool in pools:
        assert not await leaked_keys(pool.settings), "keys without a lifetime"


@contextmanager
def _without_waits() -> Generator[None]:
    """Make attempts follow each other at once, as long as any pool of this process is open."""
    _UNWAITED.enter()
    try:
        yield
    finally:
        _UNWAITED.leave()


class _Unwaited:
    """Counts the open pools: the first and the last one change how the process waits."""

    def __init__(self) -> None:
        self._open = 0
        self._testing = ExitStack()

    def enter(self) -> None:
        if self._open == 0:
            self._testing.enter_context(stamina.set_testing(True, attempts=1_000_000, cap=True))
        self._open += 1

    def leave(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._testing.close()


_UNWAITED = _Unwaited()


def _clock_settings(given: Settings | None, url: str) -> ClockSettings:
    """Make the settings of a pool, in a namespace that no other has."""
    chosen = {} if given is None else arguments_of(given)
    chosen |= OF_SERVERS
    chosen |= {"url": SecretStr(url), "namespace": f"{TEST_CLOCK}{uuid.uuid4().hex[:12]}"}
    return ClockSettings(**chosen)
