"""Checkpoints of LangGraph: put, get and list, and bytes at 100 steps, beside the other savers."""

from __future__ import annotations

import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product

from benchmarks.driver import PEERS_HOME, Contender, NotMeasured
from benchmarks.peers.graph_savers import STEPS
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer, stack_server
from benchmarks.tasks.postgres import BenchPostgres

_ENVIRONMENT = PEERS_HOME / "peer-langgraph"
_PEERS = {
    "redis": "langgraph-checkpoint-redis, Redis 7.2 with search and JSON",
    "postgres": "langgraph-checkpoint-postgres, pool of 16",
    "aws": "langgraph-checkpoint-aws, Valkey saver",
}
_OPERATIONS = ("put", "get", "list")
_CALLERS = (1, 64)
_RUNS = 4
# Too short for a second graph: the first has begun by then.
_ONE_S = 0.02


@dataclass
class _Saver:
    contender: Contender
    size: Callable[[], int]


def measure_graphs(run: Run) -> list[Row]:
    """Measure all savers, in turn within each repeat."""
    trouble: dict[str, str] = {}
    rates: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    bytes_: dict[str, float] = {}
    with ExitStack() as stack:
        savers: dict[str, _Saver] = {}
        for name in ("ours", *_PEERS):
            try:
                savers[name] = _started(name, stack)
            except (NotMeasured, RuntimeError, OSError) as error:
                trouble[name] = str(error)
        for number in range(run.repeats):
            run.tell(f"langgraph, repeat {number + 1} of {run.repeats}")
            _one_repeat(run, savers, rates, trouble)
        for name, saver in savers.items():
            if name not in trouble:
                run.tell(f"langgraph, {STEPS} steps with {name}")
                try:
                    bytes_[name] = _bytes(saver)
                except NotMeasured as error:
                    trouble[name] = str(error)
    return [*_rates(rates), *_sizes(bytes_), *_missing(trouble)]


def _one_repeat(
    run: Run,
    savers: dict[str, _Saver],
    rates: dict[tuple[str, str, int], list[float]],
    trouble: dict[str, str],
) -> None:
    for operation, callers in product(_OPERATIONS, _CALLERS):
        for name, saver in savers.items():
            if name in trouble:
                continue
            try:
                done = saver.contender.measure(operation, callers=callers, seconds=run.seconds)
            except NotMeasured as error:
                trouble[name] = str(error)
            else:
                rates[name, operation, callers].append(done.rate)


def _started(name: str, stack: ExitStack) -> _Saver:
    python = None if name == "ours" else _ENVIRONMENT / "bin" / "python"
    if name == "postgres":
        postgres = BenchPostgres()
        stack.callback(postgres.stop)
        url, size = postgres.url, lambda: _postgres_bytes(postgres)
    else:
        server = stack_server(_ENVIRONMENT) if name == "redis" else BenchServer()
        stack.enter_context(server)
        url, size = server.url, server.memory
    contender = stack.enter_context(
        Contender("graph_savers", url, python=python, settings={"REDIS_STATE_BENCH_SAVER": name})
    )
    return _Saver(contender, size)


def _bytes(saver: _Saver) -> float:
    """Return the bytes of a checkpoint, with its writes, of graphs of 100 steps."""
    # Once before, so that what is made once is there.
    saver.contender.measure("run", callers=1, seconds=_ONE_S)
    before, count = saver.size(), 0
    for _ in range(_RUNS):
        count += saver.contender.measure("run", callers=1, seconds=_ONE_S).count
    return (saver.size() - before) / count / STEPS


def _postgres_bytes(postgres: BenchPostgres) -> int:
    """Ask for the size of its tables, with their indexes."""
    names = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    total = " + ".join(f"pg_total_relation_size('{name}')" for name in names)
    asked = [part for name in names for part in ("-c", f"VACUUM FULL {name}")]
    asked += ["-c", f"SELECT {total}"]
    found = subprocess.check_output(
        [postgres.programs / "psql", "-qtA", postgres.url, *asked], text=True
    )
    return int(found.split()[-1])


def _rates(rates: dict[tuple[str, str, int], list[float]]) -> list[Row]:
    rows: list[Row] = []
    for operation in _OPERATIONS:
        for callers in _CALLERS:
            ours = rates.get(("ours", operation, callers), [])
            if not ours:
                continue
            who = "1 caller" if callers == 1 else f"{callers} callers"
            measure = f"graph checkpoint {operation}, {who}"
            rows.append(row(measure, statistics.median(ours), "/s"))
            for name, peer in _PEERS.items():
                theirs = rates.get((name, operation, callers), [])
                if theirs:
                    pairs = zip(ours, theirs, strict=False)
                    ratio = statistics.median(one / other for one, other in pairs)
                    value = statistics.median(theirs)
                    rows.append(row(measure, value, "/s", peer=peer, ratio=ratio, bar=(5.0, 10.0)))
    return rows


def _sizes(found: dict[str, float]) -> list[Row]:
    measure = f"bytes per graph checkpoint at {STEPS} steps"
    if "ours" not in found:
        return []
    rows = [row(measure, found["ours"], "bytes")]
    for name, peer in _PEERS.items():
        if name in found:
            ratio = found["ours"] / found[name]
            bar = (0.3, 0.2)
            rows.append(
                row(measure, found[name], "bytes", peer=peer, ratio=ratio, bar=bar, most=True)
            )
    return rows


def _missing(trouble: dict[str, str]) -> list[Row]:
    return [
        missing("graph checkpoints", why, peer=_PEERS.get(name, name), failed=name == "ours")
        for name, why in trouble.items()
    ]
