"""Connections that die without a word, and planned failovers, under live clients and workers.

Nothing is lost, and nothing is done twice: see `load`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import Settings
from tests.chaos.support.load import load
from tests.chaos.support.trial import Trial
from tests.support.servers.changes.rollback import replicas
from tests.support.servers.faults import Proxy


async def test_links_are_half_open(trial: Trial, settings: Settings) -> None:
    trial.parameters = {"half_open": trial.size.of(30, least=2), "workers": 2}
    chance = random.Random(21)
    async with Proxy(settings.url.get_secret_value()) as proxy:
        through = {"url": SecretStr(proxy.url), "call_timeout_s": 3.0}
        async with load(trial, settings.model_copy(update=through)):
            for _ in range(trial.parameters["half_open"]):
                await asyncio.sleep(chance.uniform(0.5, 2.0))
                trial.faults += proxy.half_open() > 0
            await asyncio.sleep(0.5)
    trial.expect(proxy.swallowed, "nothing was sent on a half-open connection")
    trial.conclude()


async def test_a_primary_hands_over_to_its_replica(
    trial: Trial, unused_tcp_port_factory: Callable[[], int]
) -> None:
    trial.parameters = {"failovers": trial.size.of(30, least=2), "workers": 2}
    chance = random.Random(22)
    ports = unused_tcp_port_factory(), unused_tcp_port_factory()
    async with replicas(ports) as servers:
        # The links to the old primary live on, and it refuses writes on them.
        settings = Settings(url=SecretStr(servers.url), call_timeout_s=10)
        async with load(trial, settings):
            for _ in range(trial.parameters["failovers"]):
                await asyncio.sleep(chance.uniform(0.1, 0.6))
                await servers.switch()
                trial.faults += 1
            await asyncio.sleep(0.5)
    trial.conclude()
