"""How long a task waits whose worker is killed, while others are served."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import ExitStack

from benchmarks.driver import Contender
from benchmarks.measure import percentile
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer
from benchmarks.tasks.paused import client_of, worker
from benchmarks.tasks.pool import HELD
from redis_state.worker import TaskClient

_LEASE_S = "1"
_HELD_AT_A_TIME = 6
_LOAD_EVERY_S = 0.02
_LOAD = 4  # tasks each time
_DEADLINE_S = 20


def measure_takeover(run: Run) -> list[Row]:
    """Kill workers with -9, one of two, again and again."""
    kills = 5 if run.quick else 50
    run.tell(f"{kills} kills")
    took, served, seconds = kill_workers(run.server, kills)
    load = served / seconds
    what = f"kill -9 to taken over, lease_s=1, {load:.0f} tasks/s beside"
    return [
        row(f"{what}, worst of {kills}", took[-1], "s", bar=(1.5, 1.2), most=True),
        row(f"{what}, p50", percentile(took, 0.5), "s"),
    ]


def kill_workers(server: BenchServer, kills: int) -> tuple[list[float], int, float]:
    """Return how long each killed worker's tasks waited at most, the shortest first; the load."""
    took, served, seconds = asyncio.run(_Killing(server).kill(kills))
    return sorted(took), served, seconds


class _Killing:
    """Two workers at any time, tasks that they hold, and others that pass."""

    def __init__(self, server: BenchServer) -> None:
        self._server = server
        self._workers: dict[int, Contender] = {}
        self._submitted = 0

    async def kill(self, kills: int) -> tuple[list[float], int, float]:
        """Return how long each killed worker's tasks waited at most, and the load beside."""
        store, client = client_of(self._server)
        begin = time.monotonic()
        took: list[float] = []
        with ExitStack() as stack:
            stack.callback(self._stop)
            async with store, client:
                loading = asyncio.create_task(self._load(client))
                try:
                    for number in range(kills):
                        await asyncio.to_thread(self._fill_up)
                        took.append(await self._once(client, number))
                finally:
                    loading.cancel()
                    await asyncio.wait({loading})
        return took, self._submitted, time.monotonic() - begin

    async def _once(self, client: TaskClient, number: int) -> float:
        session = f"held-{number}"
        tasks = {await client.submit("held", session_id=session) for _ in range(_HELD_AT_A_TIME)}
        begun = [await self._heard(tasks) for _ in tasks]
        victim = begun[0][1]
        left = {task for task, process, _ in begun if process == victim}
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        self._workers.pop(victim).stop()
        others, last = tasks - left, killed
        while left:
            task, _, at = await self._heard(left)
            left.discard(task)
            last = max(last, at)
        for task in others:
            await client.cancel(session, task, hard=True)
        return last - killed

    async def _heard(self, tasks: set[str]) -> tuple[str, int, float]:
        while True:
            said = await asyncio.to_thread(self._server.redis.blpop, [HELD], _DEADLINE_S)
            if said is None:
                raise RuntimeError(f"a task was not taken over within {_DEADLINE_S} s")
            task, process, at = json.loads(said[1])
            if task in tasks:
                return task, process, at

    async def _load(self, client: TaskClient) -> None:
        while True:
            await asyncio.sleep(_LOAD_EVERY_S)
            for _ in range(_LOAD):
                self._submitted += 1
                await client.submit("noop", session_id=f"load-{self._submitted % 100}")

    def _fill_up(self) -> None:
        while len(self._workers) < 2:
            started = worker(self._server, _LEASE_S)
            self._workers[started.said["pid"]] = started

    def _stop(self) -> None:
        for each in self._workers.values():
            each.stop()
