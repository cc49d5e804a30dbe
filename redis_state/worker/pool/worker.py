"""The worker: kept alive through restarts of the server, and stopped in good order."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis_state import limits
from redis_state.archive import open_archive
from redis_state.backoff import Backoff
from redis_state.errors import (
    BackendError,
    BackendUnavailable,
    CommandRefused,
    ConfigError,
    NoConnection,
)
from redis_state.settings import Settings, make_settings, misspelt_variables
from redis_state.store import RedisStateStore, process_name
from redis_state.transport.connections.address import Address
from redis_state.worker.arq.cron import NEEDS_ARQ, copies
from redis_state.worker.arq.job_format import RUN_TASK, deserialize, serialize
from redis_state.worker.handler.guards import Guard
from redis_state.worker.handler.versions import lanes_of, versions_of
from redis_state.worker.observe import tracing
from redis_state.worker.observe.registry import INTERVAL_S, WorkerIdentity
from redis_state.worker.observe.stats import Polls
from redis_state.worker.pool.heartbeat import Heartbeat
from redis_state.worker.pool.process import WorkerConfig, WorkerProcess, need_prometheus
from redis_state.worker.pool.signals import WorkerSignals
from redis_state.worker.queue.job import ClaimedJob, JobPayload, RunAgain
from redis_state.worker.queue.loop import QueueLoop
from redis_state.worker.queue.queue import DEFAULT_QUEUE, Queue
from redis_state.worker.runs.config import Handler
from redis_state.worker.runs.run_task import run_task
from redis_state.worker.tasks.execution.steps import StepPolicy
from redis_state.worker.tasks.transitions import MAX_CRASHES

if TYPE_CHECKING:
    from arq.cron import CronJob

log: logging.Logger = logging.getLogger(__name__)

_SERVICES = "redis_state.services"
# It grows while the server refuses every client, until a person changes something.
_RESTART_S = Backoff(0.5, 5.0)
_COMPLAIN_EVERY_S = 30.0
# How long a stop may take beside `grace_s`, and how much of that is for the end of the services.
# A handler has five seconds to clean up, and a write has its own deadline.
_LEAVE_S = 15.0
_END_S = 5.0
_CUT_S = 0.5
# arq itself reads no more of a queue, and running jobs stay in it.
_ARQ_READS = 10_000


@dataclass(frozen=True, slots=True)
class AgentWorker:
    """A worker process of the pool: its handlers, and how it runs them.

    - ``queue``, else ``tasks``, is served; or ``queues``, the preferred first, which
      share ``max_tasks`` slots. ``queue_limits`` is the most of one queue's tasks at a time.
    - ``task_timeout_s`` ends a run as FAILED. The time of a PAUSE event counts.
    - ``lease_s`` is how long a task stays with a silent worker. The lease is renewed each third of
      it, by ``heartbeat``: the event loop, or a thread that a busy loop does not stop.
    - ``grace_s`` is how long tasks may continue after a SIGTERM before they are handed off.
    - ``interval_s`` is how often the worker updates its entry for `WorkerRegistry`.
    - ``steps`` is how steps are retried, and what happens to the tasks of a changed handler.
    - ``max_crashes``: more workers than this that die with one task in a row end it.
    - ``guards`` are called at each checkpoint of every task.
    - ``metrics_port`` serves Prometheus metrics. ``metrics_registry`` takes them too.
    - ``crons`` run at their times on one of the workers of the (first) queue. All workers need
      them. `cleanup_cron` makes one.
    - ``schedules``: whether this worker submits the tasks of schedules. One of the pool must.

    Errors: ConfigError for impossible options.
    """

    handlers: Mapping[str, Handler]
    settings: Settings | None = None
    queue: str | None = None
    max_tasks: int = 10
    task_timeout_s: float = 300.0
    lease_s: float = 10.0
    poll_s: float = 0.05
    grace_s: float = 10.0
    name: str | None = None
    queues: Sequence[str] = ()
    queue_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    heartbeat: Heartbeat = "loop"
    interval_s: float = INTERVAL_S
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_registry: Any = None
    steps: StepPolicy | None = None
    max_crashes: int = MAX_CRASHES
    crons: Sequence[CronJob] = ()
    guards: Sequence[Guard] = ()
    schedules: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        self._check_queues()
        copies(self.crons)
        with limits.options():
            limits.count("max_tasks", self.max_tasks)
            limits.count("max_crashes", self.max_crashes, least=0)
            for queue, most in self.queue_limits.items():
                limits.count(f"queue_limits[{queue!r}]", most)
            for option in ("task_timeout_s", "lease_s", "poll_s", "interval_s"):
                limits.seconds(option, getattr(self, option))
            limits.seconds("grace_s", self.grace_s, least=0)
        if self.heartbeat not in ("loop", "thread"):
            raise ConfigError(f"heartbeat is loop or thread, not {self.heartbeat!r}")

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queues that this worker serves, the preferred first."""
        return self._named() or (DEFAULT_QUEUE,)

    def with_queues(self, *queues: str) -> AgentWorker:
        """Make a worker alike that serves these queues, the preferred first."""
        limits = {name: most for name, most in self.queue_limits.items() if name in queues}
        return replace(self, queue=None, queues=queues, queue_limits=limits)

    def arq_settings(self) -> type:
        """Make the settings class that ``arq`` starts. arq itself exits when Redis restarts.

        arq picks jobs itself: by this process's clock, and among the first 10,000 of the queue.
        Running jobs count among them, and each costs one call. No client wakes it. It takes other
        namespaces' jobs too, so the queue must belong to one. On SIGTERM running tasks may continue
        for ``grace_s``, rounded up to whole seconds, and are then handed off.

        Errors: ConfigError without arq, for more than one queue or a queue limit, and for options
        of the queue's URL that arq cannot pass on. `run` and `serve` can.
        """
        try:
            from redis_state.worker.arq.settings import arq_server  # noqa: PLC0415 - needs arq
        except ImportError as error:
            raise ConfigError(NEEDS_ARQ.format("arq's own runner")) from error
        queue, *others = self.queue_names
        if others or self.queue_limits:
            raise ConfigError("arq's own runner serves one queue: use run() or redis-state worker")
        server = arq_server(self.settings or make_settings())
        return type(
            "WorkerSettings",
            (),
            self._arq_options(queue)
            | {
                "redis_settings": server,
                "job_completion_wait": math.ceil(self.grace_s),
                "queue_read_limit": _ARQ_READS,
            },
        )

    def run(self, *, uvloop: bool = False) -> None:
        """Run until SIGTERM, SIGINT or SIGHUP, through server restarts. Return after draining.

        The process is the worker's: what it has made before, such as its modules, is left out of
        garbage collection until it returns. It waits for no thread of ``asyncio.to_thread``.

        Errors: ConfigError if ``uvloop`` is requested and not installed; those of `serve`.
        """
        frozen_before = _has_frozen_objects()
        # Garbage that is frozen stays.
        gc.collect()
        # Else each full collection would look at all modules again: a sixth of a short task's CPU.
        gc.freeze()
        try:
            with asyncio.Runner(loop_factory=_uvloop_factory() if uvloop else None) as runner:
                runner.get_loop().set_default_executor(_LeftThreads(thread_name_prefix="asyncio"))
                runner.run(self._serve(handle_signals=True))
        finally:
            # A host may have frozen objects of its own, to share them with its forks.
            if not frozen_before:
                gc.unfreeze()

    async def serve(self, *, handle_signals: bool = True) -> None:
        """Run until SIGTERM, SIGINT or SIGHUP, or until cancelled, through server restarts.

        Without ``handle_signals``, for a host that has its own, run until cancelled. Cancelling
        hands running tasks off at once.

        Errors: NoConnection if the server never accepted the worker and a retry is useless: for a
        wrong password, a certificate, a missing right. ConfigError for settings of no use. Both are
        logged, too. An unreachable server is waited for.
        """
        try:
            await self._serve(handle_signals=handle_signals)
        except (ConfigError, NoConnection) as error:
            # A host that has made a task of this may look at it much later, or never.
            log.error("this worker does not serve: %s", error)  # noqa: TRY400 - it is raised
            raise

    async def _serve(self, *, handle_signals: bool) -> None:
        process = WorkerProcess(self._worker_config(), polls=Polls())
        loop = self._queue_loop(process)
        signals = WorkerSignals()
        if handle_signals:
            signals.listen()
        self._announce()
        polling = asyncio.create_task(self._poll(process, loop))
        stopping = asyncio.create_task(signals.stop.wait())
        listening = asyncio.create_task(loop.listen())
        try:
            await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                polling.result()
            await self._finish_running(process, loop, signals)
        finally:
            for task in (polling, stopping, listening):
                task.cancel()
            await asyncio.wait({polling, stopping, listening})
            await _leave(process, loop)
            if handle_signals:
                signals.leave()

    async def _poll(self, process: WorkerProcess, loop: QueueLoop) -> None:
        """Poll through trouble with the server. Errors: NoConnection, if it never accepted this
        worker.
        """
        failures, failed_at, complained_at = 1, 0.0, -math.inf
        while True:
            failure = await self._poll_until_trouble(process, loop)
            final = isinstance(failure, NoConnection) and failure.final
            if final and not process.polls.ever:
                raise failure
            failures = failures + 1 if final and process.polls.at <= failed_at else 1
            wait_s, failed_at = _RESTART_S.after(failures), monotonic()
            if failed_at - complained_at >= _COMPLAIN_EVERY_S:
                complained_at = failed_at
                log.warning("no tasks are taken from %s; next try in %.1f s", failure, wait_s)
            await asyncio.sleep(wait_s)

    async def _poll_until_trouble(self, process: WorkerProcess, loop: QueueLoop) -> Exception:
        """Start the process's services, unless they are started, and poll; return what ended it."""
        try:
            await process.start()
            await loop.poll()
        except CommandRefused as error:
            return _refused(error, process)
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
        config = self._worker_config()
        settings = config.settings
        url = (settings.queue_url or settings.url).get_secret_value()
        log.info(
            "worker %s serves %s at %s with %d slots; handlers: %s",
            config.about.name,
            ", ".join(self.queue_names),
            Address.parse(url),
            self.max_tasks,
            ", ".join(config.about.handlers) or "none",
        )
        for variable, setting in misspelt_variables().items():
            log.warning("%s names no setting and is ignored: is it %s?", variable, setting)

    async def _finish_running(
        self, process: WorkerProcess, loop: QueueLoop, signals: WorkerSignals
    ) -> None:
        loop.stop_picking()
        reported = asyncio.create_task(process.drain())
        await loop.settle()
        running = loop.unfinished()
        if running:
            log.info(
                "running tasks: %d; they may finish for %g s, then they are handed off",
                len(running),
                self.grace_s,
            )
            await signals.patience(running, timeout_s=self.grace_s)
        reported.cancel()
        await asyncio.wait({reported})

    def _queue_loop(self, process: WorkerProcess) -> QueueLoop:
        async def run(job: ClaimedJob, payload: JobPayload) -> None:
            if tracing.is_active():
                payload = await _with_trace(process.queue, job, payload)
            await run_task(
                process.store,
                process.run_config,
                payload,
                queue=job.queue,
                permit=job.claimed if job.is_limited else None,
            )

        limits = self.queue_limits
        return QueueLoop(
            process.queue,
            [(name, limits.get(name, self.max_tasks)) for name in self.queue_names],
            slots=self.max_tasks,
            poll_s=self.poll_s,
            run=run,
            polls=process.polls,
            lanes=lanes_of(self.handlers),
        )

    def _arq_options(self, queue: str) -> dict[str, Any]:
        """Return what arq's own runner is to do: our process beside it, each task a job of its."""
        config = self._worker_config()
        # Made again at the start. Here it only raises for wrong settings.
        store = RedisStateStore(config.settings)
        key = Queue(store, name=queue).keys().queue

        async def startup(ctx: dict[Any, Any]) -> None:
            process = ctx[_SERVICES] = WorkerProcess(config)
            await process.start()

        async def shutdown(ctx: dict[Any, Any]) -> None:
            process: WorkerProcess | None = ctx.pop(_SERVICES, None)
            if process is not None:
                await _end_well(process)

        async def run(ctx: dict[Any, Any], stated: Any) -> None:
            from arq.worker import Retry  # noqa: PLC0415 - it runs this

            job = JobPayload.read(stated)
            if job is None:
                log.warning("a job that names no task is dropped")
                return
            process: WorkerProcess = ctx[_SERVICES]
            try:
                await run_task(process.store, process.run_config, job, queue=queue)
            except RunAgain as again:
                raise Retry(defer=again.defer_s) from None

        run.__qualname__ = RUN_TASK
        return {
            "functions": [run],
            "cron_jobs": copies(self.crons),
            "queue_name": key,
            "on_startup": startup,
            "on_shutdown": shutdown,
            "job_serializer": serialize,
            "job_deserializer": deserialize,
            "max_jobs": self.max_tasks,
            # Ours ends a run first, and knows what to write.
            "job_timeout": self.task_timeout_s + 30,
            "poll_delay": self.poll_s,
            "keep_result": 0,
            "max_tries": 1_000_000,
            "health_check_interval": 15,
            "log_results": False,
        }

    def _check_queues(self) -> None:
        if isinstance(self.queues, str):
            raise ConfigError("queues: a sequence of names is needed; one alone is queue")
        names = self._named()
        if not all(names):
            raise ConfigError("queues: each needs a name")
        if len(set(names)) < len(names):
            raise ConfigError("queues: one is named twice")
        if self.queues and self.queue is not None:
            raise ConfigError("queue and queues cannot both be given")
        # The settings are not read for nothing.
        served = self.queue_names if self.queue_limits else ()
        strangers = sorted(set(self.queue_limits) - set(served))
        if strangers:
            raise ConfigError(f"queue_limits names no queue of this worker: {strangers[0]!r}")

    def _named(self) -> tuple[str, ...]:
        if self.queues:
            return tuple(self.queues)
        return () if self.queue is None else (self.queue,)

    def _worker_config(self) -> WorkerConfig:
        if self.metrics_port is not None or self.metrics_registry is not None:
            need_prometheus()
        settings = self.settings or make_settings()
        if settings.archive_url is not None:
            # It raises for wrong settings, before anything runs.
            open_archive(settings)
        return WorkerConfig(
            settings=settings,
            handlers=self.handlers,
            about=WorkerIdentity(
                name=self.name or process_name(),
                queues=self.queue_names,
                handlers=sorted(self.handlers),
                versions=versions_of(self.handlers),
                max_tasks=self.max_tasks,
                heartbeat=self.heartbeat,
            ),
            lease_s=self.lease_s,
            limit_s=self.task_timeout_s,
            grace_s=self.grace_s,
            interval_s=self.interval_s,
            metrics_host=self.metrics_host,
            metrics_port=self.metrics_port,
            metrics_registry=self.metrics_registry,
            steps=self.steps,
            max_crashes=self.max_crashes,
            guards=tuple(self.guards),
            crons=self.crons,
            schedules=self.schedules,
        )


class _LeftThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. A stop does not wait for them: nothing can stop one."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base has it
        del wait, cancel_futures
        super().shutdown(wait=False, cancel_futures=True)


def _refused(error: CommandRefused, process: WorkerProcess) -> BackendUnavailable:
    """Return what a missing right is for a worker: useless to wait for at its start."""
    address = str(process.queue.transport.address)
    return BackendUnavailable(address, str(error).removeprefix(f"{address}: "), final=True)


async def _with_trace(queue: Queue, job: ClaimedJob, named: JobPayload) -> JobPayload:
    """Read the context of the span that queued a job. No run depends on it."""
    with suppress(BackendError):
        stated = await queue.payload(job)
        if stated is not None:
            return replace(named, trace=stated.trace)
    return named


async def _leave(process: WorkerProcess, loop: QueueLoop) -> None:
    """Hand off what runs, and end the services, within a time that a supervisor can be given.

    With a dead link each write would wait for its own deadline. Then leases run out instead.
    """
    ends_s = monotonic() + _LEAVE_S
    await _done_by(ends_s - _END_S, loop.hand_off(), process)
    await _done_by(ends_s, _end_well(process), process)


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


async def _end_well(process: WorkerProcess) -> None:
    try:
        await process.aclose()
    except Exception:
        log.exception("the worker's services did not end in good order")


def _has_frozen_objects() -> bool:
    """Return whether something is left out of garbage collection.

    The interpreter's first objects then are, of which this is one. Counting what is frozen would
    walk over all of it: 0.2 s for a worker that was forked from a process with many modules.
    """
    return not any(each is sys.modules for each in gc.get_objects())


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        module: Any = import_module("uvloop")
    except ImportError:
        raise ConfigError("uvloop is an extra: pip install redis_state[uvloop]") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = module.new_event_loop
    return factory
