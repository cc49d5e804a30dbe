"""A pool of workers and many callers on a cluster, for as long as REDIS_STATE_SOAK_MINUTES says.

Slots move in both ways, primaries and workers are killed, one fault after the other. All calls are
made with the guarantee ``replicated``, and none may fail.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.testing import eventually
from redis_state.transport.cluster.slots import SLOTS, slot_of
from redis_state.worker import TaskClient
from tests.chaos.support.crew import Crew, recorded
from tests.chaos.support.notes import note
from tests.chaos.support.soak import SOAK_LEASE_S, Soak, soak_settings
from tests.chaos.support.trial import Trial
from tests.support.processes.pools import queue_of
from tests.support.servers.sets.clusters import Cluster, running_cluster

_SEED = 31
_FULL_MINUTES = 30.0
_LEAST_MINUTES = 1.5
_MINUTES = os.environ.get("REDIS_STATE_SOAK_MINUTES")
_WORKERS, _AT_ONCE = 3, 12
_NAMESPACE = "soak"
_QUIET_S = 3.0
# What has a lifetime of minutes is as much after a quarter of the time as in the end.
_STEADY_MINUTES = 12.0
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class _Size:
    """What the servers and the worker that is never killed hold."""

    keys: int
    bytes: int
    worker_kb: int


@dataclass
class _Faults:
    """Faults, in turn."""

    cluster: Cluster
    crew: Crew
    folder: Path
    chance: random.Random
    moves_atomically: bool
    fired: Counter[str] = field(default_factory=Counter[str])
    slots: int = 0

    def in_turn(self) -> itertools.cycle[Callable[[], Awaitable[None]]]:
        """Give the faults, one after the other, without an end."""
        return itertools.cycle([self._move, self._migrate, self._kill, self._kill_a_worker])

    async def _move(self) -> None:
        slots = await self._in_use(20)
        slots += self.chance.sample(range(SLOTS), 10)
        target = self.chance.choice(await self.cluster.primaries())
        await self.cluster.move(slots, target)
        self.slots += len(slots)
        self.fired["reshards, slot by slot"] += 1

    async def _migrate(self) -> None:
        if not self.moves_atomically:
            await self._move()
            return
        (used,) = await self._in_use(1)
        first = max(0, min(SLOTS - 500, used - 250))
        target = self.chance.choice(await self.cluster.primaries())
        self.slots += await self.cluster.migrate(first, first + 499, target)
        self.fired["reshards by MIGRATESLOTS"] += 1

    async def _kill(self) -> None:
        lost = self.chance.choice(await self.cluster.primaries())
        self.cluster.kill(lost)
        await self.cluster.failed_over(lost)
        self.cluster.start_node(lost)
        await self.cluster.settled()
        self.fired["primaries killed"] += 1

    async def _kill_a_worker(self) -> None:
        # The first is left, to see whether it grows.
        name = self.chance.choice(self.crew.alive()[1:])
        died = await self.crew.kill(name)
        note(self.folder, "deaths", name, time.monotonic())
        self.fired["workers killed"] += died == -signal.SIGKILL
        await self.crew.start()

    async def _in_use(self, count: int) -> list[int]:
        """Find slots that have keys of the soak."""
        found: set[int] = set()
        for port in await self.cluster.primaries():
            async with self.cluster.client(port) as client:
                _, keys = await client.execute_command("SCAN", 0, "COUNT", 1_000)
                found.update(map(slot_of, keys))
        return self.chance.sample(sorted(found), min(count, len(found)))


async def _size(cluster: Cluster, folder: Path) -> _Size:
    keys = total = 0
    for port in await cluster.primaries():
        keys += int(await cluster.ask(port, "DBSIZE"))
        info: str = await cluster.ask(port, "INFO", "memory")
        fields = dict(line.split(":", 1) for line in info.split() if ":" in line)
        total += int(fields["used_memory_dataset"])
    return _Size(keys, total, _resident_kb(folder))


def _resident_kb(folder: Path) -> int:
    """Read how much memory the first worker has."""
    _, pid = recorded(folder, "workers")[0]
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


async def _keys_for_ever(cluster: Cluster) -> list[str]:
    """List the keys without a lifetime, of all primaries."""
    found: list[str] = []
    for port in await cluster.primaries():
        async with cluster.client(port) as client:
            cursor: Any = "0"
            while True:
                cursor, keys = await client.execute_command("SCAN", cursor, "COUNT", 1_000)
                lives = [await client.execute_command("PTTL", key) for key in keys]
                pairs = zip(keys, lives, strict=True)
                found += [key for key, life in pairs if life == -1]
                if cursor in (0, "0"):
                    break
    return found


def _minutes(trial: Trial) -> float:
    if _MINUTES is not None:
        return float(_MINUTES)
    minutes = _FULL_MINUTES * trial.size.factor
    if minutes < _LEAST_MINUTES:
        pytest.skip("make soak: one round of faults takes half a minute")
    return minutes


@pytest.mark.timeout(60 * (2 * max(float(_MINUTES or 0), _FULL_MINUTES) + 10))
async def test_a_pool_on_a_cluster_outlives_reshards_and_kills(
    trial: Trial, tmp_path: Path
) -> None:
    minutes = _minutes(trial)
    until = time.monotonic() + minutes * 60
    trial.parameters = {"minutes": minutes, "primaries": 3, "replicas": 3, "workers": _WORKERS}
    sizes: list[_Size] = []
    async with running_cluster(replicas=1) as cluster:
        settings = soak_settings(cluster.url, _NAMESPACE)
        async with (
            Crew(
                settings, tmp_path, lease_s=SOAK_LEASE_S, program="soak_worker", max_tasks=_AT_ONCE
            ) as crew,
            RedisStateStore(settings) as store,
            TaskClient(store, queue=queue_of(settings)) as client,
        ):
            for _ in range(_WORKERS):
                await crew.start()
            await _arrived(client, settings)
            soak = Soak(trial, client, tmp_path)
            faults = _Faults(
                cluster, crew, tmp_path, random.Random(_SEED), await cluster.migrates_slots()
            )
            async with soak.running():
                began, fault = time.monotonic(), faults.in_turn()
                while time.monotonic() < until:
                    before = soak.rows.total()
                    await next(fault)()
                    await asyncio.sleep(_QUIET_S)
                    await soak.more_than(before)
                    if time.monotonic() > began + (until - began) * (len(sizes) + 1) / 4:
                        sizes.append(await _size(cluster, tmp_path))
                sizes.append(await _size(cluster, tmp_path))
            trial.expect(not (kept := await _keys_for_ever(cluster)), f"for ever: {kept[:5]}")
    soak.judge()
    _judge_size(trial, sizes, minutes)
    trial.faults = faults.fired.total()
    trial.figures |= dict(faults.fired) | {"slots moved": faults.slots}
    trial.conclude()


async def _arrived(client: TaskClient, settings: Settings) -> None:
    async def all_there() -> bool:
        there = [info for info in await client.workers() if queue_of(settings) in info.queues]
        return len(there) == _WORKERS

    await eventually(all_there, "the workers are there", timeout_s=60)


def _judge_size(trial: Trial, sizes: list[_Size], minutes: float) -> None:
    first, last = sizes[0], sizes[-1]
    trial.figures["after_a_quarter"] = {
        "keys": first.keys,
        "bytes": first.bytes,
        "worker_kb": first.worker_kb,
    }
    trial.figures["in_the_end"] = {
        "keys": last.keys,
        "bytes": last.bytes,
        "worker_kb": last.worker_kb,
    }
    if minutes < _STEADY_MINUTES:
        return
    for name in ("keys", "bytes", "worker_kb"):
        begun, ended = getattr(first, name), getattr(last, name)
        trial.expect(ended < begun * _GROWTH, f"{name} grew from {begun} to {ended}")
