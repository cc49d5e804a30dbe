"""Sentinels replace a primary that is killed or stands still, under live clients and workers.

Nothing is lost, and nothing is done twice: see `load`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import Settings
from redis_state.testing import eventually
from tests.chaos.support.load import load
from tests.chaos.support.trial import Trial
from tests.support.servers.sets.sentinels import running_sentinels

_SILENT_S = 1.5


async def test_sentinels_replace_a_lost_primary(
    trial: Trial, unused_tcp_port_factory: Callable[[], int]
) -> None:
    trial.parameters = {"losses": trial.size.of(20), "workers": 2}
    silences = list[float]()
    async with running_sentinels(unused_tcp_port_factory, password="s3cret") as sentinels:
        # What its replica does not have yet a primary does not acknowledge.
        settings = Settings(url=SecretStr(sentinels.url), call_timeout_s=30, guarantee="replicated")
        async with load(trial, settings):
            for number in range(trial.parameters["losses"]):
                await asyncio.sleep(0.5)
                lost = await sentinels.primary()
                (sentinels.stop if number % 2 else sentinels.kill)(lost)
                await sentinels.moved_from(lost)
                silences.append(await _until_acknowledged(trial, time.monotonic()))
                trial.faults += 1
                if number % 2:
                    sentinels.resume(lost)
                else:
                    sentinels.start_server(lost, primary=await sentinels.primary())
                await sentinels.settled()
    trial.figures["silence_s"] = round(max(silences), 2)
    trial.expect(
        not trial.size.full or max(silences) <= _SILENT_S, f"nobody was answered: {silences}"
    )
    trial.conclude()


async def _until_acknowledged(trial: Trial, since: float) -> float:
    """Wait for the first acknowledgement after a moment; return how long it took to come."""

    def acknowledged() -> list[float]:
        return [at for _, how, _, at in trial.history.events if how == "ok" and at > since]

    return min(await eventually(acknowledged, "callers go on", timeout_s=60)) - since
