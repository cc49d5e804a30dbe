"""Calls while the server forgets its scripts, and calls that are cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter

from redis_state import RedisStateStore, Settings
from tests.chaos.support.trial import Trial
from tests.support.servers.faults import run_processes

_FLUSH_EVERY_S = 0.05
_PROCESSES = 2


async def test_scripts_are_flushed_all_the_time(
    trial: Trial, store: RedisStateStore, settings: Settings
) -> None:
    trial.parameters = {
        "seconds": trial.size.of(60, least=2),
        "processes": _PROCESSES,
        "callers": 8,
        "flush_every_s": _FLUSH_EVERY_S,
    }
    load = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "callers": 8,
        "seconds": trial.parameters["seconds"],
    }
    running = asyncio.create_task(run_processes("flush_load", [load] * _PROCESSES, timeout_s=180))
    while not running.done():
        await store.transport.sender.send("SCRIPT", "FLUSH", repeatable=True)
        trial.faults += 1
        await asyncio.wait({running}, timeout=_FLUSH_EVERY_S)
    for found in running.result():
        trial.history.merge(found["events"])
        trial.expect(not found["errors"], f"errors: {Counter(found['errors'])}")
        trial.expect(not found["mismatched"], f"{found['mismatched']} mismatched replies")
    least = 0.25 * trial.parameters["seconds"] / _FLUSH_EVERY_S
    trial.expect(trial.faults >= least, f"only {trial.faults} flushes")
    trial.figures = {"errors": 0, "mismatched": 0} if not trial.problems else {}
    trial.conclude()


async def test_calls_are_cancelled(trial: Trial, settings: Settings) -> None:
    wanted = trial.size.of(100_000)
    trial.parameters = {"cancelled": wanted, "processes": _PROCESSES}
    storm = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "cancelled": -(-wanted // _PROCESSES),
    }
    found = await run_processes(
        "cancel_calls", [storm | {"seed": seed} for seed in range(_PROCESSES)], timeout_s=300
    )
    for each in found:
        trial.history.merge(each["events"])
        trial.faults += each["cancelled"]
        trial.expect(not each["errors"], f"errors: {Counter(each['errors'])}")
        trial.expect(not each["mismatched"], f"{each['mismatched']} mismatched replies")
        left = (each["connections"] - each["servers"], each["pending"])
        trial.expect(left == (0, 0), f"connections too many, and pending calls: {left}")
    trial.expect(trial.faults >= wanted, f"only {trial.faults} were cancelled")
    trial.figures = {"errors": 0, "mismatched": 0} if not trial.problems else {}
    trial.conclude()
