"""The part ``tasks``: its pieces, one after the other; what one cannot do, the others still do."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.driver import NotMeasured
from benchmarks.report import Row, missing
from benchmarks.runner import Run
from benchmarks.tasks.full_store import measure_full_store
from benchmarks.tasks.paused import measure_delays, measure_paused
from benchmarks.tasks.takeover import measure_takeover
from benchmarks.tasks.throughput import measure_throughput
from benchmarks.tasks.workers import measure_workers
from redis_state.errors import RedisStateError

_PIECES: dict[str, Callable[[Run], list[Row]]] = {
    "throughput": measure_throughput,
    "delays": measure_delays,
    "paused": measure_paused,
    "workers": measure_workers,
    "takeover": measure_takeover,
    "full store": measure_full_store,
}


def measure_tasks(run: Run) -> list[Row]:
    """Measure all pieces."""
    rows: list[Row] = []
    for name, piece in _PIECES.items():
        run.server.flush()
        try:
            rows += piece(run)
        except (NotMeasured, RedisStateError, RuntimeError, TimeoutError, OSError) as error:
            rows.append(missing(f"tasks, {name}", str(error), failed=True))
    return rows
