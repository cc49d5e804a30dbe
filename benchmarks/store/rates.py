"""Operations per second, latency and CPU: every contender in turn, again and again."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.driver import PEERS_HOME, Contender, NotMeasured
from benchmarks.measure import Measured
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.server import BenchServer, stack_server
from benchmarks.store.limit import find_tool, measure_limit

MANY = 64
_BUSY = "ours, busy_poll_us=100"
_A2A = PEERS_HOME / "peer-a2a"
_LANGGRAPH = PEERS_HOME / "peer-langgraph"


@dataclass
class Samples:
    """What was measured of one contender's operation with so many callers."""

    rates: list[float] = field(default_factory=list[float])
    p50_us: list[float] = field(default_factory=list[float])
    p99_us: list[float] = field(default_factory=list[float])
    client_us: list[float] = field(default_factory=list[float])
    server_us: list[float] = field(default_factory=list[float])

    def add(self, done: Measured, server_s: float) -> None:
        """Take one measurement in."""
        self.rates.append(done.rate)
        self.p50_us.append(done.p50_us)
        self.p99_us.append(done.p99_us)
        self.client_us.append(done.cpu_us)
        self.server_us.append(server_s / done.count * 1e6)


Found = dict[tuple[str, str, int], Samples]


def measure_rates(run: Run) -> list[Row]:
    """Measure all contenders, in turn within each repeat, and judge ours."""
    found: Found = {}
    trouble: dict[str, str] = {}
    contenders: dict[str, tuple[Contender, BenchServer]] = {}
    stack: BenchServer | None = None
    try:
        starts: dict[str, Callable[[], Contender]] = {
            "ours": lambda: Contender("ours", run.server.url),
            _BUSY: lambda: Contender("busy_polling", run.server.url),
            "pool": lambda: Contender("pool", run.server.url),
            "naive": lambda: Contender("naive", run.server.url),
            "naive on redis-py 8": lambda: _peer("naive", _A2A, run.server),
            "a2a-redis": lambda: _peer("a2a_redis", _A2A, run.server),
            "a2a-sdk sqlite": lambda: _peer("a2a_sqlite", _A2A, run.server),
        }
        for name, start in starts.items():
            try:
                contenders[name] = start(), run.server
            except NotMeasured as error:
                trouble[name] = str(error)
        try:
            stack = stack_server(_LANGGRAPH)
            contenders["langgraph-redis"] = _peer("langgraph", _LANGGRAPH, stack), stack
        except (NotMeasured, RuntimeError, OSError) as error:
            trouble["langgraph-redis"] = str(error)
        for number in range(run.repeats):
            run.tell(f"rates, repeat {number + 1} of {run.repeats}")
            _one_repeat(run, contenders, found, trouble)
    finally:
        for contender, _ in contenders.values():
            contender.stop()
        if stack is not None:
            stack.stop()
    return _rows(found, trouble)


def _peer(module: str, environment: Path, server: BenchServer) -> Contender:
    return Contender(
        module, server.url, python=environment / "bin" / "python", folder=server.folder
    )


def _one_repeat(
    run: Run,
    contenders: Mapping[str, tuple[Contender, BenchServer]],
    found: Found,
    trouble: dict[str, str],
) -> None:
    tool = find_tool()
    try:
        before = run.server.cpu_s()
        limit = measure_limit(run.server, tool, seconds=run.seconds)
        spent = run.server.cpu_s() - before
        found.setdefault((f"limit ({tool.name})", "append", MANY), Samples()).add(limit, spent)
    except RuntimeError as error:
        trouble["limit"] = str(error)
    for operation, callers in (
        *(("append", callers) for callers in (1, MANY)),
        *(("event", MANY), ("ping", 1)),
        # Saved before they are loaded.
        *((name, callers) for name in ("save", "load") for callers in (1, MANY)),
    ):
        for name, (contender, server) in contenders.items():
            if name in trouble or not _does(name, operation, callers):
                continue
            before = server.cpu_s()
            try:
                done = contender.measure(operation, callers=callers, seconds=run.seconds)
            except NotMeasured as error:
                trouble[name] = str(error)
                continue
            samples = found.setdefault((name, operation, callers), Samples())
            samples.add(done, server.cpu_s() - before)


def _does(name: str, operation: str, callers: int) -> bool:
    if name == _BUSY:
        return callers == 1 and operation != "ping"
    if operation == "event":
        return name in ("ours", "pool")
    if operation == "ping":
        return name == "ours"
    return operation != "append" or name in ("ours", "pool") or name.startswith("naive")


# who, operation, callers, quantity, peer, bar, stretch, smaller is better
_BARS = (
    ("ours", "append", MANY, "rates", "limit", 0.30, 0.45, False),
    ("ours", "append", MANY, "rates", "naive", 3.5, 5, False),
    ("ours", "save", MANY, "rates", "naive", 4, 7, False),
    ("ours", "save", MANY, "rates", "a2a-redis", 5, 8, False),
    ("ours", "save", MANY, "rates", "langgraph-redis", 15, 30, False),
    ("ours", "save", MANY, "rates", "a2a-sdk sqlite", 60, 120, False),
    ("ours", "load", MANY, "rates", "naive", 3, 5, False),
    ("ours", "load", MANY, "rates", "a2a-redis", 5, 9, False),
    ("ours", "load", MANY, "rates", "langgraph-redis", 20, 40, False),
    ("ours", "append", 1, "p50_us", "naive", 1.0, 0.8, True),
    ("ours", "save", 1, "p50_us", "naive", 0.6, 0.35, True),
    (_BUSY, "append", 1, "p50_us", "naive", 1.0, 0.8, True),
    (_BUSY, "save", 1, "p50_us", "naive", 0.6, 0.35, True),
    ("ours", "append", MANY, "client_us", "pool", 0.30, 0.18, True),
    ("ours", "append", MANY, "server_us", "pool", 0.35, 0.25, True),
)
_SAID = {
    "rates": ("ops/s", "ops/s"),
    "p50_us": ("p50", "us"),
    "client_us": ("client CPU", "us/op"),
    "server_us": ("server CPU", "us/op"),
}


def _rows(found: Found, trouble: Mapping[str, str]) -> list[Row]:
    rows: list[Row] = []
    named = {name.partition(" (")[0]: name for name, _, _ in found}
    for who, operation, callers, quantity, peer, bar, stretch, most in _BARS:
        said, unit = _SAID[quantity]
        measure = f"{operation}, {_callers(callers)}, {said}{who.removeprefix('ours')}"
        ours = found.get((who, operation, callers))
        full = named.get(peer, peer)
        theirs = found.get((full, operation, callers))
        if ours is None:
            rows.append(missing(measure, trouble.get(who, "?"), peer=peer, failed=True))
        elif theirs is None:
            rows.append(missing(measure, trouble.get(peer, "?"), peer=peer))
        else:
            # Ratios of the same repeat, then their median: a neighbour's noise is in both.
            pairs = zip(getattr(ours, quantity), getattr(theirs, quantity), strict=False)
            ratio = statistics.median(mine / other for mine, other in pairs)
            value = statistics.median(getattr(ours, quantity))
            rows.append(
                row(measure, value, unit, peer=full, ratio=ratio, bar=(bar, stretch), most=most)
            )
    for (name, operation, callers), samples in found.items():
        for quantity, (said, unit) in {**_SAID, "p99_us": ("p99", "us")}.items():
            if name.startswith("limit") and quantity not in ("rates", "server_us"):
                continue
            value = statistics.median(getattr(samples, quantity))
            rows.append(row(f"{name}: {operation}, {_callers(callers)}, {said}", value, unit))
    return rows


def _callers(number: int) -> str:
    return "1 caller" if number == 1 else f"{number} callers"
