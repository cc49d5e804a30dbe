"""Sinks of telemetry: what they write and count, and that none is ever in a task's way."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state import ConfigError, InvalidField, telemetry
from redis_state.telemetry import (
    Counts,
    GuardedSink,
    LoggingSink,
    MemoryHealthEvent,
    NoOpSink,
    PrometheusSink,
    TaskTelemetrySink,
)
from redis_state.testing import eventually
from tests.support.processes import children
from tests.support.servers.faults import run_processes


class Kind(Enum):
    """A host's enum."""

    FOREGROUND = "FOREGROUND"


def task_event(event_type: str = "task_completed", **more: Any) -> Any:
    fields: dict[str, Any] = {
        "event_type": event_type,
        "outcome": "completed",
        "session_id": "s",
        "task_id": "t",
        "parent_task_id": None,
        "trace_id": "trace",
        "task_type": Kind.FOREGROUND,
        "status": "COMPLETE",
        "mode": "foreground",
        "spawn_reason": "a secret reason",
        "duration_ms": 12.3456,
        "extra": {},
    }
    return SimpleNamespace(**(fields | more))


class Recording:
    """Note what comes, and in which thread."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.threads: set[int] = set()

    async def emit(self, event: Any) -> None:
        """Note an event."""
        await asyncio.sleep(0)
        self.seen.append(event)
        self.threads.add(threading.get_ident())


class Blocked:
    """Block the thread that calls, until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.entered = threading.Event()

    async def emit(self, event: Any) -> None:
        """Block."""
        self.entered.set()
        self.let_go.wait()


class Failing:
    """Fail, with a secret in the error."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)

    async def emit(self, event: Any) -> None:
        """Fail."""
        raise self._errors.pop(0)


@asynccontextmanager
async def guarding(sink: TaskTelemetrySink, **options: Any) -> AsyncGenerator[GuardedSink]:
    guard = GuardedSink(sink, **options)
    yield guard
    await guard.aclose()


async def test_a_sink_that_does_nothing_does_nothing() -> None:
    await NoOpSink().emit(task_event())


@pytest.mark.parametrize(
    ("event", "level", "text"),
    [
        (
            task_event("task_spawned", duration_ms=None),
            "INFO",
            (
                "task_spawned session_id='s' task_id='t' trace_id='trace' outcome='completed' "
                "mode='foreground' task_type='FOREGROUND' status='COMPLETE'"
            ),
        ),
        (
            task_event("task_failed", extra={"error": "a secret", "error_type": "a secret"}),
            "ERROR",
            (
                "task_failed session_id='s' task_id='t' trace_id='trace' outcome='completed' "
                "mode='foreground' task_type='FOREGROUND' status='COMPLETE' duration_ms=12.35 "
                "extra='error,error_type'"
            ),
        ),
        (
            task_event("task_cancelled", session_id="a\nb", mode=None, trace_id=None),
            "WARNING",
            (
                "task_cancelled session_id='a\\nb' task_id='t' outcome='completed' "
                "task_type='FOREGROUND' status='COMPLETE' duration_ms=12.35"
            ),
        ),
        (
            MemoryHealthEvent("retry", "degraded"),
            "WARNING",
            "memory_health_changed before='retry' after='degraded'",
        ),
        (
            MemoryHealthEvent("recovering", "healthy"),
            "INFO",
            "memory_health_changed before='recovering' after='healthy'",
        ),
    ],
    ids=["spawned", "failed", "cancelled", "degraded", "healthy"],
)
async def test_an_event_is_logged_without_what_it_carries(
    event: Any, level: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await LoggingSink().emit(event)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (level, text)
    fields: dict[str, Any] = getattr(record, "telemetry")  # noqa: B009 - a field of extra
    assert all(f"{name}={value!r}" in text for name, value in fields.items())
    assert "secret" not in str(vars(record))


async def test_a_logger_of_ones_own_is_used(caplog: pytest.LogCaptureFixture) -> None:
    await LoggingSink(logging.getLogger("mine")).emit(task_event("task_failed"))
    assert [record.name for record in caplog.records] == ["mine"]


async def test_a_guard_delivers_in_order_in_a_thread_of_its_own() -> None:
    sink = Recording()
    async with guarding(sink) as guard:
        for number in range(200):
            await guard.emit(number)
    assert sink.seen == list(range(200))
    assert threading.get_ident() not in sink.threads
    assert len(sink.threads) == 1
    assert guard.counts == Counts(taken=200, delivered=200)


async def test_a_guard_never_lets_the_caller_wait() -> None:
    async with guarding(Recording()) as guard:
        emitting = guard.emit("event")
        with pytest.raises(StopIteration):
            # It ends with its first step: nothing in it was awaited.
            emitting.send(None)


async def test_what_a_blocked_sink_cannot_take_is_dropped_and_counted() -> None:
    sink = Blocked()
    async with guarding(sink, max_waiting=10) as guard:
        await guard.emit("first")
        await asyncio.to_thread(sink.entered.wait, 10)
        for number in range(25):
            await guard.emit(number)
        assert guard.counts == Counts(taken=26, dropped=15)
        sink.let_go.set()
        await eventually(lambda: guard.counts.delivered == 11, "the rest is delivered")


async def _time_of(guard: GuardedSink, steps: int) -> float:
    """Measure the CPU time of a task that emits after each bit of work; blocked, it never ends."""
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for number in range(steps):
            sum(range(20_000))
            await guard.emit(number)
        best = min(best, time.process_time() - started)
    return best


async def test_a_blocked_or_failing_sink_does_not_slow_a_task() -> None:
    blocked = Blocked()
    failing = Failing(*(RuntimeError("no") for _ in range(5000)))
    async with guarding(NoOpSink()) as free, guarding(blocked, max_waiting=10) as held:
        async with guarding(failing, max_waiting=10) as broken:
            expected = await _time_of(free, 100)
            slowed = max([await _time_of(held, 100), await _time_of(broken, 100)])
            # Dropping costs less than delivering: 2 leaves room for a busy machine.
            assert slowed < expected * 2, f"{slowed / expected:.2f} times as slow"
            assert held.counts.dropped
            assert broken.counts.failed
        blocked.let_go.set()


async def test_a_sink_that_never_comes_back_is_given_up_each_time() -> None:
    class Waiting:
        """Wait for ever."""

        async def emit(self, event: Any) -> None:
            """Wait."""
            await asyncio.Event().wait()

    async with guarding(Waiting(), timeout_s=0.01) as guard:
        for number in range(3):
            await guard.emit(number)
        await eventually(lambda: guard.counts.failed == 3, "each is given up")


async def test_errors_are_counted_and_the_first_of_each_kind_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = [ValueError("a secret"), ValueError("2"), KeyError("3"), asyncio.CancelledError()]
    async with guarding(Failing(*errors, SystemExit())) as guard:
        for number in range(5):
            await guard.emit(number)
    assert guard.counts == Counts(taken=5, failed=5)
    kinds = ["ValueError", "KeyError", "CancelledError", "SystemExit"]
    assert [record.args for record in caplog.records] == [(kind,) for kind in kinds]
    assert "secret" not in caplog.text


async def test_closing_does_not_wait_for_ever_and_counts_what_is_left() -> None:
    sink = Blocked()
    guard = GuardedSink(sink)
    for number in range(5):
        await guard.emit(number)
    await asyncio.to_thread(sink.entered.wait, 10)
    await guard.aclose(timeout_s=0.01)
    await guard.emit("late")
    assert guard.counts == Counts(taken=6, dropped=5)
    sink.let_go.set()
    await eventually(lambda: guard.counts.delivered == 1, "the one under way ends")
    await guard.aclose()


async def test_a_guard_that_was_never_used_closes_at_once() -> None:
    guard = GuardedSink(NoOpSink())
    await guard.aclose()
    assert guard.counts == Counts()


async def test_an_event_is_dropped_when_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    guard = GuardedSink(NoOpSink())
    await guard.emit("event")
    assert guard.counts == Counts(taken=1, dropped=1)


async def test_a_process_ends_although_a_sink_blocks() -> None:
    (ended,) = await run_processes("emit_and_end", [{}], timeout_s=30)
    assert ended["dropped"] >= 89


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_guard_goes_on_in_a_forked_process() -> None:
    code = (
        "import asyncio, os\n"
        "from redis_state.telemetry import GuardedSink, NoOpSink\n"
        "guard = GuardedSink(NoOpSink())\n"
        "guard.put(1)\n"
        "while not guard.counts.delivered: pass\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    guard.put(2)\n"
        "    asyncio.run(guard.aclose())\n"
        "    os._exit(guard.counts.delivered)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    process = await children.start(*(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.strip() == b"2"


def test_a_guard_needs_room() -> None:
    with pytest.raises(InvalidField) as caught:
        GuardedSink(NoOpSink(), max_waiting=0)
    assert caught.value.field == "max_waiting"


EVENTS = st.builds(
    task_event,
    st.sampled_from(["task_spawned", "task_failed", "task_group_completed", "surprise"]),
    outcome=st.sampled_from(["spawned", "failed", "surprise"]),
    task_type=st.sampled_from([Kind.FOREGROUND, "BACKGROUND", "surprise"]),
    mode=st.sampled_from([None, "job", "surprise"]),
    duration_ms=st.sampled_from([None, 0.0, 20.0, 2500.0, -1.0, float("nan"), float("inf")]),
)
HEALTHS = st.sampled_from(["healthy", "degraded", "surprise"])


@given(st.lists(EVENTS | st.builds(MemoryHealthEvent, HEALTHS, HEALTHS), max_size=30))
def test_the_numbers_in_prometheus_are_those_of_a_model(events: list[Any]) -> None:
    client = pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    registry = client.CollectorRegistry()
    sink = PrometheusSink(registry)
    counted: Counter[tuple[str, ...]] = Counter()
    seconds: Counter[tuple[str, str]] = Counter()
    changes: Counter[tuple[str, str]] = Counter()

    def label(value: Any) -> str:
        return "other" if value == "surprise" else "none" if value is None else value

    for item in events:
        asyncio.run(sink.emit(item))
        if isinstance(item, MemoryHealthEvent):
            changes[label(item.before), label(item.after)] += 1
            continue
        kind = item.task_type.value if isinstance(item.task_type, Kind) else item.task_type
        labels = (item.event_type, item.outcome, kind, item.mode)
        counted[tuple(map(label, labels))] += 1
        if item.duration_ms in (0.0, 20.0, 2500.0):
            seconds[label(item.outcome), label(kind)] += item.duration_ms / 1000

    found = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.endswith(("_total", "_sum"))
    }
    wanted: dict[Any, Any] = {
        ("redis_state_task_events_total", key): n for key, n in counted.items()
    }
    wanted |= {("redis_state_memory_health_changes_total", key): n for key, n in changes.items()}
    wanted |= {
        ("redis_state_task_duration_seconds_sum", key): pytest.approx(n)
        for key, n in seconds.items()
    }
    assert found == wanted


async def test_prometheus_shows_what_a_guard_dropped() -> None:
    client = pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    registry = client.CollectorRegistry()
    sink = PrometheusSink(registry)
    guard = GuardedSink(sink, max_waiting=5)
    sink.follow(guard)
    await guard.memory_health_changed("healthy", "retry")
    await guard.aclose()
    await guard.emit(task_event())

    def value(name: str, **labels: str) -> Any:
        return registry.get_sample_value(name, labels)

    counts = ("taken", "delivered", "dropped", "failed")
    found = [value("redis_state_telemetry_events", what=what) for what in counts]
    assert found == [2, 1, 1, 0]
    assert value("redis_state_memory_health_changes_total", before="healthy", after="retry") == 1


def test_without_the_package_the_sink_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'redis_state\[prometheus\]'"):
        PrometheusSink()


async def test_importing_the_package_and_the_sinks_loads_no_prometheus() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import redis_state, redis_state.memory\n"
        "from redis_state.telemetry import GuardedSink, LoggingSink\n"
    )
    process = await children.start(sys.executable, "-c", code)
    assert await process.wait() == 0


def test_a_registry_takes_one_sink() -> None:
    client = pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    own = client.CollectorRegistry()
    PrometheusSink(own)
    with pytest.raises(ConfigError, match="share that one"):
        PrometheusSink(own)
    PrometheusSink(client.CollectorRegistry())


def test_the_default_registry_is_the_processes_own(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("prometheus_client", reason="needs the prometheus extra")
    own = client.CollectorRegistry()
    monkeypatch.setattr(client, "REGISTRY", own)
    PrometheusSink()
    names = {family.name for family in own.collect()}
    assert "redis_state_task_events" in names


def test_every_export_is_documented() -> None:
    assert all(getattr(telemetry, name).__doc__ for name in telemetry.__all__)
