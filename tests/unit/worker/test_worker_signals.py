"""The signals that end a worker: real ones, sent to this process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager

import pytest

pytest.importorskip("stamina", reason="needs the worker extra")

from redis_state.worker.pool.signals import WorkerSignals

# As `_SAME_S` in `redis_state.worker.pool.signals`, and as much again.
_LATER_S = 0.6


@contextmanager
def handled(number: signal.Signals, how: signal.Handlers) -> Generator[None]:
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_each_of_them_asks_to_stop(number: signal.Signals) -> None:
    with handled(signal.SIGHUP, signal.SIG_DFL):
        signals = WorkerSignals()
        signals.listen()
        try:
            os.kill(os.getpid(), number)
            async with asyncio.timeout(10):
                await signals.stop.wait()
        finally:
            signals.leave()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


async def test_a_hangup_that_nohup_has_the_process_ignore_stays_ignored() -> None:
    with handled(signal.SIGHUP, signal.SIG_IGN):
        signals = WorkerSignals()
        signals.listen()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signals.leave()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


async def test_only_a_later_second_sigint_ends_the_patience() -> None:
    signals = WorkerSignals()
    signals.listen()
    running = asyncio.create_task(asyncio.Event().wait())
    try:
        # A terminal's Ctrl-C may come twice, and a supervisor repeats its SIGTERM. The loop hears
        # of all three in one turn.
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await signals.stop.wait()
        patience = asyncio.create_task(signals.patience({running}, timeout_s=3600))
        await asyncio.wait({patience}, timeout=_LATER_S)
        assert not patience.done()
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(10):
            await patience
        assert not running.done()
    finally:
        signals.leave()
        running.cancel()


async def test_the_patience_ends_with_the_tasks_and_with_its_time() -> None:
    signals = WorkerSignals()
    never = asyncio.create_task(asyncio.Event().wait())
    async with asyncio.timeout(10):
        await signals.patience({asyncio.create_task(asyncio.sleep(0))}, timeout_s=3600)
        await signals.patience({never}, timeout_s=0)
    assert not never.done()
    never.cancel()
