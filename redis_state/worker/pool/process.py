"""What a worker process has beside its tasks: its store, its heartbeat, its background loops.

Made and ended by arq's hooks, so that it is there under arq's own command too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis_state.archive import open_archive
from redis_state.errors import BackendError, CommandRefused, ConfigError
from redis_state.primitives.lease import Leases
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.worker.archiving.loop import archive_regularly
from redis_state.worker.arq.cron import CronRunner
from redis_state.worker.handler.guards import Guard
from redis_state.worker.handler.versions import lanes_of
from redis_state.worker.observe.durable_events import (
    count_events_regularly,
    retain_events_regularly,
)
from redis_state.worker.observe.registry import WorkerIdentity, WorkerRecord
from redis_state.worker.observe.stats import Polls, WorkerStats, stale_writes_refused
from redis_state.worker.pool.heartbeat import Heartbeat, HeartbeatThread
from redis_state.worker.queue.counting import count_queues_regularly
from redis_state.worker.queue.jobs.parked import queue_parked
from redis_state.worker.queue.queue import Queue
from redis_state.worker.recovery.sweep_loop import sweep_regularly
from redis_state.worker.runs.config import Handler, RunConfig
from redis_state.worker.schedules.runner import run_schedules
from redis_state.worker.tasks.execution.policy import StepPolicy
from redis_state.worker.tasks.waitpoints.open_pauses import pauses_older_than

if TYPE_CHECKING:
    from redis_state.worker.arq.cron import CronJob
    from redis_state.worker.observe.metrics import Served

log: logging.Logger = logging.getLogger(__name__)

Loop = Callable[[], Coroutine[Any, Any, None]]

_AGAIN_S = 1.0
_COMPLAIN_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker process is to be."""

    settings: Settings
    handlers: Mapping[str, Handler]
    about: WorkerIdentity
    lease_s: float
    limit_s: float
    grace_s: float
    interval_s: float
    metrics_host: str
    metrics_port: int | None
    metrics_registry: Any
    steps: StepPolicy | None
    max_crashes: int
    guards: Sequence[Guard]
    crons: Sequence[CronJob] = ()
    schedules: bool = True
    # Tests have a sweeper of their own, see `redis_state.testing.pool`.
    sweeps: bool = True

    @property
    def heartbeat(self) -> Heartbeat:
        """Who renews the leases."""
        return "thread" if self.about.heartbeat == "thread" else "loop"

    @property
    def has_metrics(self) -> bool:
        """Whether metrics are configured."""
        return self.metrics_port is not None or self.metrics_registry is not None


class WorkerProcess:
    """The services of one running worker process."""

    def __init__(self, config: WorkerConfig, *, polls: Polls | None = None) -> None:
        self._config = config
        self.store: RedisStateStore = RedisStateStore(config.settings)
        self.queue: Queue = Queue(self.store, name=config.about.queues[0])
        self.polls: Polls = polls or Polls()
        # None under arq's own runner, which does not report its polls.
        self.stats: WorkerStats = WorkerStats(config.handlers, polls=polls)
        self.worker_record: WorkerRecord = WorkerRecord(
            self.store, config.about, self.stats, interval_s=config.interval_s
        )
        self._thread = HeartbeatThread(self.store) if config.heartbeat == "thread" else None
        self.run_config: RunConfig = RunConfig(
            handlers=config.handlers,
            worker=config.about.name,
            lease_s=config.lease_s,
            limit_s=config.limit_s,
            keep_s=config.limit_s + config.grace_s,
            leases=Leases(
                self.store.base.scripts,
                keep_ms=ms(config.settings.active_task_ttl),
                loop=self._thread.loop if self._thread else asyncio.get_running_loop,
            ),
            stats=self.stats,
            steps=config.steps,
            max_crashes=config.max_crashes,
            queue=self.queue,
            guards=config.guards,
            presence=self.worker_record,
            may_block=self._thread is not None,
        )
        self.served: Served | None = None
        # What counts for the metrics; None before they are served.
        self._counting: dict[str, Loop] | None = None
        self._running: list[asyncio.Future[None]] = []

    async def reach(self) -> None:
        """Reach the store's server, before anything is started. Errors: NoConnection."""
        with suppress(CommandRefused):
            await self.store.transport.commands.ping()

    async def start(self) -> None:
        """Start everything, unless it is started. Errors: NoConnection.

        A queue on another server does not say whether the store's is there.
        """
        if self._running:
            return
        # Before a server is reached: what asks whether this process lives must not depend on one.
        if self._counting is None:
            self._counting = self._metrics()
        if self._config.settings.queue_url is not None and self.stats.polls is not None:
            await self.reach()
        if self._thread is not None:
            await self._thread.start()
            # A busy loop must not make its worker look dead.
            work = run_forever(self.worker_record.keep, "presence")
            self._running.append(asyncio.wrap_future(self._thread.spawn(work)))
        self._running.append(asyncio.create_task(self._warn(), name="warn"))
        for name, loop in self._loops().items():
            self._running.append(asyncio.create_task(run_forever(loop, name), name=name))

    def _loops(self) -> dict[str, Loop]:
        """Return the background loops of a worker process. Each runs until it is cancelled."""
        loops: dict[str, Loop] = {"sweeper": self._sweep} if self._config.sweeps else {}
        if self._config.settings.has_archive:
            loops["archive"] = self._archive
        if self.store.events.is_durable:
            loops["events"] = partial(count_events_regularly, self.store, self.stats)
            loops["event retention"] = partial(retain_events_regularly, self.store)
        if self._thread is None:
            loops["presence"] = self.worker_record.keep
        # arq's own runner has cron jobs of its own.
        if self._config.crons and self.stats.polls is not None:
            crons = CronRunner(
                self.store, self._config.crons, is_draining=lambda: self.stats.draining
            )
            loops["cron"] = crons.run
        if self._config.schedules:
            loops["schedules"] = partial(run_schedules, self.store, self.queue, stats=self.stats)
        if self.stats.polls is None:
            loops["parked"] = partial(
                queue_parked,
                self.queue,
                self.queue.name,
                lanes_of(self._config.handlers),
            )
        return loops | (self._counting or {})

    async def _warn(self) -> None:
        """Warn of server settings that endanger what is stored, once the server answers."""
        while True:
            health = await self.store.health()
            if health.problem is None:
                break
            await asyncio.sleep(_AGAIN_S)
        if health.problems:
            log.warning("the server at %s: %s", health.address, "; ".join(health.problems))

    async def _sweep(self) -> None:
        config = self._config
        await sweep_regularly(
            self.store,
            queues=config.about.queues,
            lease_s=config.lease_s,
            max_crashes=config.max_crashes,
            stats=self.stats,
            # arq's own runner does not list its claims.
            often=self.stats.polls is None,
            claiming=self.queue,
            archiving=config.settings.has_archive,
        )

    async def _archive(self) -> None:
        await archive_regularly(self.store, open_archive(self._config.settings), stats=self.stats)

    def _metrics(self) -> dict[str, Loop]:
        config = self._config
        if not config.has_metrics:
            return {}
        try:
            from redis_state.worker.observe.metrics import (  # noqa: PLC0415 - needs the extra
                Served,
                WorkerMetrics,
                count_regularly,
            )

            metrics = WorkerMetrics(
                worker=config.about.name,
                max_tasks=config.about.max_tasks,
                stats=self.stats,
                refused=lambda: stale_writes_refused(self.store.base.scripts.lost),
            )
            self.served = Served(
                metrics,
                registry=config.metrics_registry,
                host=config.metrics_host,
                port=config.metrics_port,
            )
        except Exception:
            log.exception("this worker has no metrics")
            return {}
        return {
            "pauses": lambda: count_regularly(self.store, self.stats, pauses_older_than),
            "queues": lambda: count_queues_regularly(
                self.store, self.queue, self.stats, serves=config.about.queues
            ),
        }

    async def drain(self) -> None:
        """Publish that this worker takes no more tasks."""
        self.stats.draining = True
        await self._on_heartbeat_loop(self.worker_record.say())

    async def aclose(self) -> None:
        """End everything, take the worker out of the registry, and disconnect."""
        for work in self._running:
            work.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        try:
            await self._release_handlers()
            if self.served is not None:
                await self.served.aclose()
            # On the connection that last wrote the record, so that no earlier write brings it back.
            await self._on_heartbeat_loop(self.worker_record.withdraw())
        finally:
            await self._disconnect()

    async def cut(self) -> None:
        """Disconnect at once: calls that wait for the server fail, and so do later ones."""
        await self.queue.transport.aclose(drain_s=0)
        await self.store.transport.aclose(drain_s=0)

    async def _disconnect(self) -> None:
        try:
            if self._thread is not None:
                await self._thread.aclose()
            await self.queue.aclose()
        finally:
            with suppress(BackendError):
                await self.store.aclose()

    async def _release_handlers(self) -> None:
        """Close what handlers keep between tasks, while the server is still reachable.

        Such a handler is an object with ``async def release(store)``.
        """
        for handler in {id(each): each for each in self._config.handlers.values()}.values():
            release: Callable[[RedisStateStore], Awaitable[None]] | None
            release = getattr(handler, "release", None)
            if release is None:
                continue
            try:
                await release(self.store)
            except Exception:
                log.exception("a handler did not release what it keeps")

    async def _on_heartbeat_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work where the presence is kept; nothing if it never was."""
        if self._thread is None:
            await work
        elif not self._thread.is_started:
            # The worker is stopped before it reached its server.
            work.close()
        else:
            await asyncio.wrap_future(self._thread.spawn(work))


async def run_forever(loop: Loop, name: str) -> None:
    """Run a background loop until cancelled; one that fails is begun again."""
    complained_at = -math.inf
    while True:
        try:
            await loop()
        except BackendError as error:
            if monotonic() - complained_at >= _COMPLAIN_EVERY_S:
                complained_at = monotonic()
                log.warning("the background loop %r is begun again: %s", name, error)
        except Exception:
            log.exception("the background loop %r has failed and is begun again", name)
        await asyncio.sleep(_AGAIN_S)


def need_prometheus() -> None:
    """Errors: ConfigError if the extra is not installed."""
    try:
        import_module("prometheus_client")
    except ImportError:
        raise ConfigError("metrics need the extra: pip install redis_state[prometheus]") from None
