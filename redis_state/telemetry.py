"""Where a session's task events go: nowhere, to a log, to Prometheus; and never in a task's way.

A sink is what PenguiFlow's ``telemetry_sink=`` takes: ``emit(event)``. Wrap it in `GuardedSink`
and nothing that it does, or fails to do, reaches a task:

    sink = GuardedSink(PrometheusSink(registry))
    session = StreamingSession("s", telemetry_sink=sink)
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from redis_state import limits
from redis_state.errors import ConfigError
from redis_state.timeouts import timeout

log: logging.Logger = logging.getLogger(__name__)

_EVENTS = (
    "task_spawned",
    "task_completed",
    "task_failed",
    "task_cancelled",
    "task_group_completed",
    "task_group_failed",
)
_LEVELS = {
    "task_failed": logging.ERROR,
    "task_group_failed": logging.ERROR,
    "task_cancelled": logging.WARNING,
}
_HEALTHS = ("healthy", "retry", "degraded", "recovering")
_OUTCOMES = ("spawned", "completed", "failed", "cancelled")
_TASK_TYPES = ("FOREGROUND", "BACKGROUND")
_MODES = ("foreground", "subagent", "job")
_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class TaskTelemetrySink(Protocol):
    """What takes the events of a session's tasks: PenguiFlow's protocol."""

    async def emit(self, event: Any) -> None:
        """Take an event."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryHealthEvent:
    """A memory's health changed. A kind of event of ours, which a sink takes like a task's."""

    before: str
    after: str
    event_type: str = "memory_health_changed"


class NoOpSink:
    """Take events and do nothing."""

    async def emit(self, event: Any) -> None:
        """Take an event."""


class LoggingSink:
    """Write each event to a log, as fields of its record: ids, kinds and numbers.

    Other fields of an event can hold user data. Of ``extra`` only the names are written, and
    neither an error's text nor the reason of a spawn.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logger or log

    async def emit(self, event: Any) -> None:
        """Write an event."""
        if isinstance(event, MemoryHealthEvent):
            facts = {"before": event.before, "after": event.after}
            level = logging.WARNING if event.after == "degraded" else logging.INFO
        else:
            facts = _facts(event)
            level = _LEVELS.get(event.event_type, logging.INFO)
        text = " ".join(f"{name}={value!r}" for name, value in facts.items())
        self._log.log(level, "%s %s", event.event_type, text, extra={"telemetry": facts})


class PrometheusSink:
    """Count events and time tasks in a Prometheus registry; by default the process's own.

    One for each registry. Errors: ConfigError if it has one, and without the package
    ``prometheus-client``.
    """

    def __init__(self, registry: Any = None) -> None:
        client = _prometheus()
        registry = client.REGISTRY if registry is None else registry
        try:
            self._register(client, registry)
        except ValueError:
            # What the registry says to a name that it has.
            raise ConfigError(
                "the registry has a PrometheusSink: share that one, or give this its own registry"
            ) from None

    def _register(self, client: Any, registry: Any) -> None:
        self._tasks = client.Counter(
            "redis_state_task_events",
            "Events of tasks",
            ("event_type", "outcome", "task_type", "mode"),
            registry=registry,
        )
        self._seconds = client.Histogram(
            "redis_state_task_duration_seconds",
            "How long ended tasks took",
            ("outcome", "task_type"),
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self._healths = client.Counter(
            "redis_state_memory_health_changes",
            "Changes of a memory's health",
            ("before", "after"),
            registry=registry,
        )
        self._guarded = client.Gauge(
            "redis_state_telemetry_events",
            "What a guard did with the events: taken, delivered, dropped, failed",
            ("what",),
            registry=registry,
        )

    async def emit(self, event: Any) -> None:
        """Count an event. A value that no label knows is counted as ``other``."""
        if isinstance(event, MemoryHealthEvent):
            before, after = _label(event.before, _HEALTHS), _label(event.after, _HEALTHS)
            self._healths.labels(before, after).inc()
            return
        outcome = _label(event.outcome, _OUTCOMES)
        task_type = _label(event.task_type, _TASK_TYPES)
        mode = "none" if event.mode is None else _label(event.mode, _MODES)
        kind = _label(event.event_type, _EVENTS)
        self._tasks.labels(kind, outcome, task_type, mode).inc()
        took_ms = event.duration_ms
        if took_ms is not None and math.isfinite(took_ms) and took_ms >= 0:
            self._seconds.labels(outcome, task_type).observe(took_ms / 1000)

    def follow(self, guard: GuardedSink) -> None:
        """Export a guard's counts in the same registry, read at each scrape."""
        for what in ("taken", "delivered", "dropped", "failed"):
            self._guarded.labels(what).set_function(lambda what=what: getattr(guard.counts, what))


@dataclass(frozen=True, slots=True)
class Counts:
    """The outcomes of the events given to a guard. The others wait, or are in progress."""

    taken: int = 0
    delivered: int = 0
    dropped: int = 0
    failed: int = 0


class GuardedSink:
    """A sink in front of another that neither delays nor breaks its callers.

    `emit` puts the event into a bounded queue and returns; it awaits nothing. The other sink runs
    in a thread and an event loop of its own, so even one that blocks delays nobody. When the queue
    is full, the event is dropped and counted. Errors are counted; the first of each kind is logged,
    by its kind only. The thread begins with the first event and does not keep a process alive:
    `aclose` delivers what waits.
    """

    def __init__(
        self, sink: TaskTelemetrySink, *, max_waiting: int = 1000, timeout_s: float = 5.0
    ) -> None:
        limits.count("max_waiting", max_waiting)
        limits.patience("timeout_s", timeout_s)
        self._sink = sink
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._waiting: deque[Any] = deque()
        self._more = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._taken = self._delivered = self._dropped = self._failed = 0
        self._noticed: set[str] = set()

    @property
    def counts(self) -> Counts:
        """What became of the events so far."""
        with self._more:
            return Counts(self._taken, self._delivered, self._dropped, self._failed)

    async def emit(self, event: Any) -> None:
        """Take an event, or drop it. Never raises, never waits."""
        self.put(event)

    async def memory_health_changed(self, before: Any, after: Any) -> None:
        """Take a change of a memory's health: a configuration's ``on_health_changed``."""
        self.put(MemoryHealthEvent(_text(before), _text(after)))

    def put(self, event: Any) -> bool:
        """Take an event, from any thread; False if it was dropped."""
        with self._more:
            self._taken += 1
            if self._closed or len(self._waiting) >= self._max_waiting:
                self._dropped += 1
                return False
            self._waiting.append(event)
            self._more.notify()
            try:
                self._start()
            except RuntimeError:
                # No thread can be started any more: the interpreter ends.
                self._waiting.pop()
                self._dropped += 1
                return False
            return True

    async def aclose(self, timeout_s: float = 5.0) -> None:
        """Deliver what waits, for at most so long, and take no more. What is left is dropped."""
        thread = self._close()
        if thread is not None:
            await asyncio.to_thread(thread.join, timeout_s)
        with self._more:
            self._dropped += len(self._waiting)
            self._waiting.clear()

    def _close(self) -> threading.Thread | None:
        with self._more:
            self._closed = True
            self._more.notify()
            return self._thread

    def _start(self) -> None:
        # A thread does not survive a fork.
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="redis_state telemetry", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while (event := self._next()) is not None:
                self._note(runner.run(self._deliver(event)))

    async def _deliver(self, event: Any) -> str | None:
        """Hand an event to the sink; name the kind of what went wrong."""
        try:
            async with timeout(self._timeout_s):
                await self._sink.emit(event)
        except BaseException as error:  # noqa: BLE001 - a host's sink, any failure
            return type(error).__name__
        return None

    def _next(self) -> Any | None:
        with self._more:
            while not self._waiting:
                if self._closed:
                    return None
                self._more.wait()
            return self._waiting.popleft()

    def _note(self, kind: str | None) -> None:
        with self._more:
            if kind is None:
                self._delivered += 1
                return
            self._failed += 1
            if kind in self._noticed:
                return
            self._noticed.add(kind)
        log.warning("a telemetry sink failed: %s; more of these are only counted", kind)


def _facts(event: Any) -> dict[str, Any]:
    names = ("session_id", "task_id", "parent_task_id", "trace_id", "outcome", "mode")
    facts: dict[str, Any] = {name: getattr(event, name) for name in names}
    facts["task_type"] = _text(event.task_type)
    facts["status"] = _text(event.status)
    if event.duration_ms is not None:
        facts["duration_ms"] = round(event.duration_ms, 2)
    extra: Any = event.extra
    if isinstance(extra, Mapping) and extra:
        facts["extra"] = ",".join(sorted(map(str, cast("Mapping[object, object]", extra))))
    return {name: value for name, value in facts.items() if value is not None}


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))


def _label(value: Any, known: tuple[str, ...]) -> str:
    """Return a label's value. Only known ones: each new one would be a time series for ever."""
    text = _text(value)
    return text if text in known else "other"


def _prometheus() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError:
        raise ConfigError(
            "PrometheusSink needs prometheus-client: pip install 'redis_state[prometheus]'"
        ) from None


__all__ = [
    "Counts",
    "GuardedSink",
    "LoggingSink",
    "MemoryHealthEvent",
    "NoOpSink",
    "PrometheusSink",
    "TaskTelemetrySink",
]
