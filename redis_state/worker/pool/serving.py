"""A worker that serves: kept alive through restarts of the server, and stopped in good order."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from time import monotonic
from typing import Any

from redis_state.backoff import Backoff
from redis_state.errors import (
    BackendError,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    NoConnection,
)
from redis_state.settings import misspelt_variables
from redis_state.transport.connections.address import Address
from redis_state.worker.pool.process import WorkerConfig, WorkerProcess
from redis_state.worker.pool.signals import WorkerSignals
from redis_state.worker.queue.loop import QueueLoop

log: logging.Logger = logging.getLogger(__name__)

# What a supervisor is to wait beside `grace_s`. A stop takes less, also if the server is silent.
STOP_S = 20.0
# It grows while the server refuses every client, until a person changes something.
_RESTART_S = Backoff(0.5, 5.0)
_COMPLAIN_EVERY_S = 30.0
# How long a stop may take beside `grace_s`, and how much of that is for the end of the services.
# A handler has five seconds to clean up, and a write has its own deadline.
_LEAVE_S = 15.0
_END_S = 5.0
_CUT_S = 0.5


class Serving:
    """A worker process that takes tasks, through trouble with the server, until it is stopped."""

    def __init__(self, config: WorkerConfig, process: WorkerProcess, loop: QueueLoop) -> None:
        self._config = config
        self._process = process
        self._loop = loop

    async def run(self, *, handle_signals: bool) -> None:
        """Serve until stopped by a signal, or until cancelled. Errors: NoConnection."""
        process, loop = self._process, self._loop
        signals = WorkerSignals()
        if handle_signals:
            signals.listen()
        self._announce()
        polling = asyncio.create_task(self._poll())
        stopping = asyncio.create_task(signals.stop.wait())
        listening = asyncio.create_task(loop.listen())
        try:
            await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                polling.result()
            await self._finish_running(signals)
        finally:
            for task in (polling, stopping, listening):
                task.cancel()
            await asyncio.wait({polling, stopping, listening})
            await _leave(process, loop)
            if handle_signals:
                signals.leave()

    async def _poll(self) -> None:
        """Poll through trouble with the server. Errors: NoConnection, if it never accepted this
        worker.
        """
        failures, failed_at, complained_at = 1, 0.0, -math.inf
        while True:
            failure = await self._poll_until_trouble()
            final = isinstance(failure, NoConnection) and failure.final
            if final and not self._process.polls.ever:
                raise failure
            failures = failures + 1 if final and self._process.polls.at <= failed_at else 1
            wait_s, failed_at = _RESTART_S.after(failures), monotonic()
            if failed_at - complained_at >= _COMPLAIN_EVERY_S:
                complained_at = failed_at
                log.warning("no tasks are taken from %s; next try in %.1f s", failure, wait_s)
            await asyncio.sleep(wait_s)

    async def _poll_until_trouble(self) -> Exception:
        """Start the process's services, unless they are started, and poll; return what ended it."""
        try:
            await self._process.start()
            await self._loop.poll()
        except CommandRefused as error:
            return _refused(error, self._process)
        except ConfigError:
            # Of a first contact: a person has to change something.
            raise
        except BackendError as error:
            return error
        except Exception as error:
            log.exception("the queue's loop has failed and is begun again")
            return error
        raise AssertionError("polling ends with an error only")

    def _announce(self) -> None:
        config = self._config
        settings = config.settings
        url = (settings.queue_url or settings.url).get_secret_value()
        log.info(
            "worker %s serves %s at %s with %d slots; handlers: %s; give it %g s to stop",
            config.about.name,
            ", ".join(config.about.queues),
            Address.parse(url),
            config.about.max_tasks,
            ", ".join(config.about.handlers) or "none",
            math.ceil(config.grace_s + STOP_S),
        )
        for variable, setting in misspelt_variables().items():
            log.warning("%s names no setting and is ignored: is it %s?", variable, setting)

    async def _finish_running(self, signals: WorkerSignals) -> None:
        process, loop = self._process, self._loop
        loop.stop_picking()
        reported = asyncio.create_task(process.drain())
        await loop.settle()
        running = loop.unfinished()
        if running:
            log.info(
                "running tasks: %d; they may finish for %g s, then they are handed off",
                len(running),
                self._config.grace_s,
            )
            await signals.patience(running, timeout_s=self._config.grace_s)
        reported.cancel()
        await asyncio.wait({reported})


def _refused(error: CommandRefused, process: WorkerProcess) -> BackendUnavailable:
    """Return what a missing right is for a worker: useless to wait for at its start."""
    address = str(process.queue.transport.address)
    return BackendUnavailable(address, str(error).removeprefix(f"{address}: "), final=True)


async def _leave(process: WorkerProcess, loop: QueueLoop) -> None:
    """Hand off what runs, and end the services, within a time that a supervisor can be given.

    With a dead link each write would wait for its own deadline. Then leases run out instead.
    """
    ends_s = monotonic() + _LEAVE_S
    await _done_by(ends_s - _END_S, loop.hand_off(), process)
    await _done_by(ends_s, end_well(process), process)


async def _done_by(ends_s: float, work: Coroutine[Any, Any, None], process: WorkerProcess) -> None:
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, ends_s - monotonic()))
        if not task.done():
            log.warning("this worker stops without its last writes: they take too long")
            # What waits for the server has its outcome now.
            await process.cut()
            await asyncio.wait({task}, timeout=_CUT_S)
        if task.done():
            task.result()
    finally:
        task.cancel()


async def end_well(process: WorkerProcess) -> None:
    """End a process's services, however they end."""
    try:
        await process.aclose()
    except Exception:
        log.exception("the worker's services did not end in good order")
