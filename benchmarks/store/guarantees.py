"""What each guarantee costs: the same appends to servers on one disk, each with a replica."""

from __future__ import annotations

import statistics
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from benchmarks.driver import Contender, NotMeasured
from benchmarks.report import Row, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer

_CALLERS = (1, 64)
_BARS = {"replicated": (0.8, 1.0), "durable": (0.5, 0.8)}
_SYNCED_S = 30.0
_FILE = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0")


def measure_guarantees(run: Run) -> list[Row]:
    """Measure the rates of all three in turn, within each repeat."""
    rates: dict[tuple[str, int], list[float]] = {}
    p50: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        fast = stack.enter_context(_with_a_replica("everysec"))
        durable = stack.enter_context(_with_a_replica("always"))
        contenders = {
            name: stack.enter_context(
                Contender("ours", server.url, settings={"REDIS_STATE_GUARANTEE": name})
            )
            for name, server in (("fast", fast), ("replicated", fast), ("durable", durable))
        }
        for number in range(run.repeats):
            run.tell(f"guarantees, repeat {number + 1} of {run.repeats}")
            for callers in _CALLERS:
                for name, contender in contenders.items():
                    done = contender.measure("append", callers=callers, seconds=run.seconds)
                    rates.setdefault((name, callers), []).append(done.rate)
                    p50.setdefault((name, callers), []).append(done.p50_us)
    rows: list[Row] = []
    for (name, callers), found in rates.items():
        said = f"append, {callers} caller{'s' * (callers > 1)}, {name}"
        pairs = zip(found, rates["fast", callers], strict=True)
        rows.append(
            row(
                f"{said}, ops/s",
                statistics.median(found),
                "ops/s",
                peer="" if name == "fast" else "fast",
                ratio=None if name == "fast" else statistics.median(a / b for a, b in pairs),
                bar=_BARS.get(name) if callers > 1 else None,
            )
        )
        rows.append(row(f"{said}, p50", statistics.median(p50[name, callers]), "us"))
    return rows


@contextmanager
def _with_a_replica(appendfsync: str) -> Generator[BenchServer]:
    options = (*_FILE, "--appendfsync", appendfsync)
    with (
        BenchServer(more=options) as primary,
        BenchServer(more=(*options, "--replicaof", "127.0.0.1", str(primary.port))),
    ):
        primary.redis.set("in sync", 1)
        if not primary.redis.wait(1, int(_SYNCED_S * 1000)):
            raise NotMeasured("the replica did not follow")
        yield primary
