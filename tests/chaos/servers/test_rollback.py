"""A server whose history goes back again and again, under live clients and workers.

What the server lost is lost. What is left fits together: see `load`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import Settings
from tests.chaos.support.load import load
from tests.chaos.support.trial import Trial
from tests.support.servers.changes.rollback import Kept, Replicas, Rollback, replicas, rolling_back


@pytest.mark.parametrize("kept", ["rdb", "aof"])
async def test_an_older_backup_is_restored(trial: Trial, kept: Kept) -> None:
    async with rolling_back(kept=kept) as server:
        await _go_back_under_load(trial, server, lambda _: server.go_back())


async def test_a_replica_that_lagged_is_promoted(
    trial: Trial, unused_tcp_port_factory: Callable[[], int]
) -> None:
    ports = unused_tcp_port_factory(), unused_tcp_port_factory()
    async with replicas(ports) as servers:
        # The old primary dies, or lives on as a replica and refuses writes.
        await _go_back_under_load(
            trial, servers, lambda number: servers.go_back(kill=bool(number % 2))
        )


async def _go_back_under_load(
    trial: Trial, server: Rollback | Replicas, go_back: Callable[[int], Awaitable[None]]
) -> None:
    trial.parameters = {"rollbacks": trial.size.of(30, least=3), "workers": 2}
    settings = Settings(url=SecretStr(server.url), call_timeout_s=10)
    chance = random.Random(20)
    async with load(trial, settings) as outside:
        for number in range(trial.parameters["rollbacks"]):
            await asyncio.sleep(chance.uniform(0.1, 0.6))
            await server.mark()
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            outside.went_back()
            await go_back(number)
            outside.went_back()
            trial.faults += 1
        await asyncio.sleep(0.5)
    trial.conclude()
