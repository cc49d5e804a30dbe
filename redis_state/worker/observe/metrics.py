"""Prometheus metrics of a worker process. Needs the extra ``prometheus``.

The numbers are the worker's counters, read at each scrape. A scrape costs a task nothing and never
waits for the server. What is counted at the server is counted in the background. Its series are
missing before the first count, and once the last count is five periods old.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from redis_state.errors import BackendError
from redis_state.primitives.watchlist.watchlist import Band, WatchList
from redis_state.store import RedisStateStore
from redis_state.worker.observe.stats import SHOWN_PERIODS, Histogram, WorkerStats
from redis_state.worker.observe.tracing import dropped

log: logging.Logger = logging.getLogger(__name__)

# Seconds. How many pauses are open for longer than each of them.
PAUSE_AGES = (0, 60, 300, 1800, 3600, 21_600, 86_400)
_COUNT_EVERY_S = 15.0
_SHOWN_S = SHOWN_PERIODS * _COUNT_EVERY_S

# Counts open pauses: how many are older than each of the ages given, in seconds.
CountPauses = Callable[[RedisStateStore, Sequence[float]], Awaitable[Sequence[int]]]


@dataclass(eq=False, slots=True)
class ArchiveMetrics(Collector):
    """The numbers of what archives, as Prometheus reads them. Every series names the process."""

    worker: str
    stats: WorkerStats

    def collect(self) -> Iterator[Metric]:
        """Yield all families. Never raises."""
        try:
            yield from list(self._families())
        except Exception as error:  # noqa: BLE001 - a scrape must not fail for it
            dropped(error)

    def describe(self) -> Iterator[Metric]:
        """Yield the families, so that a registry refuses a second worker with the same names."""
        yield from self._families()

    def _families(self) -> Iterator[Metric]:
        yield from self._of_archive()

    def _of_archive(self) -> Iterator[Metric]:
        stats, backlog = self.stats, self.stats.archive_backlog.value
        if stats.archived:
            yield self._counter(
                "archived",
                "What the archiver did: tasks, updates, missed, postponed, other, refused, erased, "
                "and what `archive_classes` names.",
                stats.archived.copy(),
                "what",
            )
        if stats.retained:
            yield self._counter(
                "archive_removed",
                "Rows that were removed from the archive because they had expired, by class.",
                stats.retained.copy(),
                "what",
            )
        if backlog is not None:
            yield self._gauge(
                "archive_backlog", "Ended tasks that are not archived yet.", {(): backlog[0]}
            )
            yield self._gauge(
                "archive_backlog_age_seconds",
                "Seconds that the first of them waits, or that the first session is behind.",
                {(): backlog[1]},
            )
        behind = stats.sessions_behind.value
        if behind is not None:
            yield self._gauge(
                "archive_sessions_behind",
                "Sessions with updates that could not be archived when they were due.",
                {(): behind},
            )
        records = stats.record_backlog.value
        if records is not None:
            yield self._gauge(
                "archive_records_backlog",
                "Records of `archive_classes` that are not archived yet.",
                {(): records[0]},
            )
            yield self._gauge(
                "archive_records_backlog_age_seconds",
                "Seconds that the first of them waits.",
                {(): records[1]},
            )

    def _gauge(
        self, name: str, text: str, values: Mapping[Any, float], *labels: str
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"redis_state_{name}", text, labels=["worker", *labels])
        self._fill(family, values)
        return family

    def _counter(
        self, name: str, text: str, values: Mapping[Any, int], *labels: str
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"redis_state_{name}", text, labels=["worker", *labels])
        self._fill(family, values)
        return family

    def _fill(
        self, family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Any, float]
    ) -> None:
        for key, value in values.items():
            family.add_metric(self._labels(key), value)

    def _histogram(
        self, name: str, text: str, values: Mapping[Any, Histogram], *labels: str
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(f"redis_state_{name}", text, labels=["worker", *labels])
        for key, histogram in dict(values).items():
            buckets: list[tuple[str, float]] = []
            so_far = 0
            names = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
            for bound, count in zip(names, histogram.counts, strict=True):
                so_far += count
                buckets.append((bound, so_far))
            family.add_metric(self._labels(key), buckets, histogram.total)
        return family

    def _labels(self, key: Any) -> list[str]:
        parts: tuple[Any, ...] = (key,) if isinstance(key, str) else tuple(key)
        return [self.worker, *(_text(part) for part in parts)]


@dataclass(eq=False, slots=True)
class WorkerMetrics(ArchiveMetrics):
    """One worker's numbers, as Prometheus reads them. Every series names the worker."""

    max_tasks: int
    refused: Callable[[], int]

    def _families(self) -> Iterator[Metric]:
        stats = self.stats
        running = Counter(run.handler for run in stats.running)
        for handler in stats.handlers:
            running.setdefault(handler, 0)
        yield self._gauge("running_tasks", "Tasks that run now.", running, "handler")
        yield self._gauge("max_tasks", "Slots: tasks that may run at once.", {(): self.max_tasks})
        yield self._gauge(
            "draining", "1 after the worker received SIGTERM.", {(): int(stats.draining)}
        )
        if stats.polls is not None:
            age = {(): stats.polls.age_s()}
            yield self._gauge(
                "poll_age_seconds", "Seconds since the worker polled its queues.", age
            )
        started = stats.started.copy()
        yield self._counter("runs_started", "Runs that began.", started, "handler")
        # Prometheus sees no increase in the first value of a series: each is there from the start.
        yield self._counter("runs_ended", "Runs that ended.", stats.ended(), "outcome")
        yield self._counter(
            "takeovers",
            "Runs that began because the lease of an earlier run expired.",
            {(): stats.taken_over},
        )
        yield self._counter(
            "leases_lost",
            "Runs of this worker whose task another worker took over.",
            {(): stats.lease_lost},
        )
        yield self._counter(
            "stale_writes_refused",
            "Writes under an old epoch that the server refused.",
            {(): self.refused()},
        )
        yield self._counter(
            "scheduled_tasks",
            "Tasks that this worker submitted for schedules.",
            {(): stats.scheduled},
        )
        yield self._histogram(
            "queue_wait_seconds",
            "Seconds from submitting or resuming to the start.",
            stats.waits,
            "queue",
        )
        yield self._histogram(
            "run_seconds", "Seconds of a run, by its outcome.", stats.runs, "handler", "outcome"
        )
        if stats.swept:
            yield self._counter(
                "swept",
                "Tasks that the sweeper repaired, by the kind of repair.",
                stats.swept.copy(),
                "what",
            )
        overdue = stats.sweep_overdue.value
        if overdue is not None:
            yield self._gauge(
                "sweep_overdue_seconds",
                "Seconds that the first task is due on the sweepers' watch list, which may need a "
                "repair, is only checked, or has ended.",
                overdue,
                "band",
            )
        yield from self._of_queues()
        yield from self._of_archive()
        yield from self._of_events()
        pauses = stats.open_pauses.value
        if pauses is not None:
            ages = {f"{age:g}": count for age, count in pauses.items()}
            yield self._gauge(
                "open_pauses",
                "Pauses that are open for longer than the label.",
                ages,
                "older_than_s",
            )

    def _of_queues(self) -> Iterator[Metric]:
        found = self.stats.queues.value or {}
        for name, text, values in (
            ("waiting", "Tasks that are due.", {each: of.waiting for each, of in found.items()}),
            ("later", "Tasks that are put off.", {each: of.later for each, of in found.items()}),
            ("running", "Tasks of workers.", {each: of.claimed for each, of in found.items()}),
            (
                "oldest_seconds",
                "Seconds that the oldest due task has waited.",
                {each: of.oldest_s for each, of in found.items()},
            ),
        ):
            yield self._gauge(f"queue_{name}", text, values, "queue")
        yield self._gauge(
            "queue_workers",
            "Live workers of the namespace that take tasks of the queue.",
            self.stats.queue_workers.value or {},
            "queue",
        )

    def _of_events(self) -> Iterator[Metric]:
        backlog = self.stats.event_backlog.value
        if backlog is not None:
            yield self._gauge(
                "durable_events_backlog",
                "Traces with audit events that are not in PostgreSQL yet.",
                {(): backlog[0]},
            )
            yield self._gauge(
                "durable_events_backlog_age_seconds",
                "Seconds that the first of them waits.",
                {(): backlog[1]},
            )


class Served:
    """A worker's metrics in a registry and, with a port, over HTTP; until closed."""

    def __init__(
        self,
        metrics: ArchiveMetrics,
        *,
        registry: CollectorRegistry | None,
        host: str,
        port: int | None,
    ) -> None:
        self._metrics = metrics
        self._registry = registry or CollectorRegistry()
        self._registry.register(metrics)
        self._server: Any = None
        if port is not None:
            try:
                self._server, _ = start_http_server(port, addr=host, registry=self._registry)
            except OSError as error:
                log.warning("metrics are not served at %s:%s: %s", host, port, error.strerror)
            else:
                log.info("metrics are served at %s:%s", host, self.port)

    @property
    def port(self) -> int | None:
        """The port they are served at, None if they are not."""
        return None if self._server is None else int(self._server.server_port)

    async def aclose(self) -> None:
        """Stop serving and leave the registry."""
        with suppress(KeyError):
            self._registry.unregister(self._metrics)
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()


async def count_regularly(store: RedisStateStore, stats: WorkerStats, count: CountPauses) -> None:
    """Count the open pauses, and how late sweepers are, every now and then, until cancelled."""
    watch = WatchList(store.base.scripts, store.base.keys)
    while True:
        try:
            overdue = await watch.overdue_by_band()
            stats.sweep_overdue.put(
                {band.value: overdue.get(band, 0.0) for band in Band}, for_s=_SHOWN_S
            )
            counts = await count(store, PAUSE_AGES)
            stats.open_pauses.put(dict(zip(PAUSE_AGES, counts, strict=True)), for_s=_SHOWN_S)
        except BackendError as error:
            log.debug("the open pauses and what is due were not counted: %s", error)
        except Exception as error:  # noqa: BLE001 - it is counted again
            dropped(error)
        await asyncio.sleep(_COUNT_EVERY_S)


def _text(part: Any) -> str:
    return str(part).encode("utf-8", "replace").decode()
