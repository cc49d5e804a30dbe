"""What a worker process has beside its tasks: its store, its heartbeat, its background loops.

Made and ended by arq's hooks, so that it is there under arq's own command too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from redis_state.errors import BackendError, CommandRefused, ConfigError, NoConnection
from redis_state.primitives.lease import Leases
from redis_state.settings import Settings
from redis_state.store import RedisStateStore
from redis_state.stores.base import ms
from redis_state.worker.guards import Guard
from redis_state.worker.heartbeat import Heartbeat, HeartbeatThread, Keeper, ThreadKeeper
from redis_state.worker.queue import Queue
from redis_state.worker.run import Handler, Terms
from redis_state.worker.steps import StepPolicy
from redis_state.worker.sweeper import sweep_regularly
from redis_state.worker.tally import Polls, Tally, stale_writes_refused
from redis_state.worker.workers import About, Presence

if TYPE_CHECKING:
    from redis_state.worker.metrics import Served

log: logging.Logger = logging.getLogger(__name__)

Loop = Callable[[], Coroutine[Any, Any, None]]

_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker process is to be."""

    settings: Settings
    handlers: Mapping[str, Handler]
    about: About
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

    @property
    def heartbeat(self) -> Heartbeat:
        """Who renews the leases."""
        return "thread" if self.about.heartbeat == "thread" else "loop"

    @property
    def has_metrics(self) -> bool:
        """Whether anybody wants them."""
        return self.metrics_port is not None or self.metrics_registry is not None


class Services:
    """The services of one running worker process."""

    def __init__(self, plan: Plan, *, polls: Polls | None = None) -> None:
        self._plan = plan
        self.store: RedisStateStore = RedisStateStore(plan.settings)
        self.queue: Queue = Queue(plan.settings, name=plan.about.queues[0])
        self.tally: Tally = Tally(plan.handlers, polls=polls)
        self.presence: Presence = Presence(
            self.store, plan.about, self.tally, interval_s=plan.interval_s
        )
        leases = Leases(self.store.base.scripts, keep_ms=ms(plan.settings.active_task_ttl))
        self._thread = HeartbeatThread(self.store) if plan.heartbeat == "thread" else None
        keeper: Keeper = ThreadKeeper(self._thread, leases) if self._thread else leases
        self.terms: Terms = Terms(
            handlers=plan.handlers,
            worker=plan.about.name,
            lease_s=plan.lease_s,
            limit_s=plan.limit_s,
            keep_s=plan.limit_s + plan.grace_s,
            keeper=keeper,
            tally=self.tally,
            steps=plan.steps,
            max_crashes=plan.max_crashes,
            queue=self.queue,
            guards=plan.guards,
        )
        self.served: Served | None = None
        self._running: list[asyncio.Future[None]] = []

    async def reach(self) -> None:
        """Reach the store's server, before anything is started. Errors: NoConnection."""
        try:
            with suppress(CommandRefused):
                await self.store.transport.sender.send("PING", repeatable=True)
        except NoConnection:
            await self.store.transport.aclose(drain_s=0)
            raise

    async def start(self) -> None:
        """Start everything."""
        if self._thread is not None:
            await self._thread.start()
            # A busy loop must not make its worker look dead.
            work = going_on(self.presence.keep, "presence")
            self._running.append(asyncio.wrap_future(self._thread.spawn(work)))
        self._running.append(asyncio.create_task(self._warn(), name="warn"))
        for name, loop in self._loops().items():
            self._running.append(asyncio.create_task(going_on(loop, name), name=name))

    def _loops(self) -> dict[str, Loop]:
        """Name the background loops of a worker process. Each runs until it is cancelled."""
        loops: dict[str, Loop] = {"sweeper": self._sweep}
        if self._thread is None:
            loops["presence"] = self.presence.keep
        loops |= self._metrics()
        return loops

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
        plan = self._plan
        await sweep_regularly(
            self.store,
            queue=plan.about.queues[0],
            lease_s=plan.lease_s,
            max_crashes=plan.max_crashes,
            tally=self.tally,
        )

    def _metrics(self) -> dict[str, Loop]:
        plan = self._plan
        if not plan.has_metrics:
            return {}
        try:
            from redis_state.worker.metrics import (  # noqa: PLC0415 - needs the extra
                Served,
                WorkerMetrics,
                count_regularly,
                pauses_older_than,
            )

            metrics = WorkerMetrics(
                worker=plan.about.name,
                max_tasks=plan.about.max_tasks,
                tally=self.tally,
                refused=lambda: stale_writes_refused(self.store.base.scripts.lost),
            )
            self.served = Served(
                metrics,
                registry=plan.metrics_registry,
                host=plan.metrics_host,
                port=plan.metrics_port,
            )
        except Exception:
            log.exception("this worker has no metrics")
            return {}
        return {"pauses": lambda: count_regularly(self.store, metrics, pauses_older_than)}

    async def drain(self) -> None:
        """Tell that this worker takes no more tasks."""
        self.tally.draining = True
        await self._by_heart(self.presence.say())

    async def aclose(self) -> None:
        """End everything, take the worker out of the registry, and disconnect."""
        for work in self._running:
            work.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        await self._release_handlers()
        if self.served is not None:
            await self.served.aclose()
        # On the connection that the record was last written over: it must not come back.
        await self._by_heart(self.presence.withdraw())
        if self._thread is not None:
            await self._thread.aclose()
        await self.queue.aclose()
        with suppress(BackendError):
            await self.store.aclose()

    async def _release_handlers(self) -> None:
        """Let handlers that keep something between tasks end it, while the server is still there.

        Such a handler is an object with ``async def release(store)``.
        """
        for handler in {id(each): each for each in self._plan.handlers.values()}.values():
            release: Callable[[RedisStateStore], Awaitable[None]] | None
            release = getattr(handler, "release", None)
            if release is None:
                continue
            try:
                await release(self.store)
            except Exception:
                log.exception("a handler did not release what it keeps")

    async def _by_heart(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work where the presence is kept."""
        if self._thread is None:
            await work
        else:
            await asyncio.wrap_future(self._thread.spawn(work))


async def going_on(loop: Loop, name: str) -> None:
    """Run a background loop until cancelled; one that fails is begun again."""
    while True:
        try:
            await loop()
        except Exception:
            log.exception("the background loop %r has failed and is begun again", name)
        await asyncio.sleep(_AGAIN_S)


def need_prometheus() -> None:
    """Errors: ConfigError if the extra is not installed."""
    try:
        import_module("prometheus_client")
    except ImportError:
        raise ConfigError("metrics need the extra: pip install redis_state[prometheus]") from None
