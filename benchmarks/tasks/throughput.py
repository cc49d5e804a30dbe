"""What a task costs its worker, and how many go through, each engine in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from benchmarks.driver import PEERS_HOME, Contender, NotMeasured
from benchmarks.report import Row, missing, row
from benchmarks.runner import Run
from benchmarks.tasks.postgres import SETTINGS as POSTGRES
from benchmarks.tasks.postgres import BenchPostgres
from benchmarks.tasks.process import CALLERS, SLOTS

_QUEUES = ("arq", "saq", "docket", "streaq")
# handler: steps of a task, tasks in a quick run, tasks in a full one
SHAPES = {"noop": (1, 800, 4000), "steps5": (5, 192, 512), "steps40": (40, 64, 128)}
_REPEATS = 3
_DOES = {"ours": tuple(SHAPES), "dbos": ("noop", "steps5")}


@dataclass
class Drained:
    """What was found of one handler, a figure of each repeat."""

    cpu_ms: list[float] = field(default_factory=list[float])
    rates: list[float] = field(default_factory=list[float])
    submits: list[float] = field(default_factory=list[float])
    submit_ms: list[float] = field(default_factory=list[float])


Found = dict[tuple[str, str], Drained]


class Engines:
    """The engines of a run, each a process that waits for its turn."""

    def __init__(self, run: Run, stack: ExitStack) -> None:
        self.trouble: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self._run = run
        self._stack = stack
        self._there: dict[str, Contender] = {}
        self._start("ours", lambda: start_engine("ours", run.server.url))
        for name in _QUEUES:
            self._start(name, partial(start_engine, name, run.server.url))
        self._start("dbos", self._dbos)

    def turn(self, found: Found) -> None:
        """Measure every engine once."""
        for handler in SHAPES:
            for name, engine in self._there.items():
                if handler in _DOES.get(name, ("noop",)) and name not in self.trouble:
                    try:
                        drained = found.setdefault((name, handler), Drained())
                        few = self._run.quick or name == "dbos"  # it takes ten times as long
                        drain_once(engine, handler, drained, quick=few)
                    except NotMeasured as error:
                        self.trouble[name] = str(error)
                    self._run.server.flush()

    def _start(self, name: str, make: Callable[[], Contender]) -> None:
        try:
            started = make()
        except (NotMeasured, OSError) as error:
            self.trouble[name] = str(error)
        else:
            self._there[name] = self._stack.enter_context(started)
            self.settings[name] = f"{started.said['settings']}{self.settings.get(name, '')}"

    def _dbos(self) -> Contender:
        try:
            postgres = self._stack.enter_context(BenchPostgres())
        except (NotMeasured, OSError) as error:
            self.settings["dbos"] = f"; on SQLite, because {error}"
            return start_engine("dbos", f"sqlite:///{self._run.server.folder}/dbos.sqlite")
        self.settings["dbos"] = f"; {postgres.version}: {POSTGRES}"
        return start_engine("dbos", postgres.url)


def start_engine(name: str, url: str) -> Contender:
    """Start the process of an engine, in its environment if it has one. Errors: NotMeasured."""
    own = name not in ("ours", "arq")
    python = PEERS_HOME / f"peer-{name}" / "bin" / "python" if own else None
    return Contender(name, url, module="benchmarks.tasks.process", python=python)


def drain_once(engine: Contender, handler: str, found: Drained, *, quick: bool) -> None:
    """Submit tasks and have them run, in one process. Errors: NotMeasured.

    The first and last tasks are not measured: the worker starts, and runs dry.
    """
    steps, few, many = SHAPES[handler]
    count = few if quick else many
    put = engine.ask({"do": "submit", "handler": handler, "count": count + 4 * SLOTS})
    done = engine.ask({"do": "drain", "first": SLOTS * steps, "count": count * steps})
    found.submits.append(put["count"] / put["seconds"])
    found.submit_ms.append(put["cpu_s"] / put["count"] * 1000)
    found.cpu_ms.append(done["cpu_s"] / count * 1000)
    found.rates.append(count / done["seconds"])


def measure_throughput(run: Run) -> list[Row]:
    """Measure all engines in turn, and appends between them."""
    found: Found = {}
    appends: list[float] = []
    with ExitStack() as stack:
        engines = Engines(run, stack)
        appending = stack.enter_context(Contender("ours", run.server.url))
        for number in range(_REPEATS):
            run.tell(f"tasks, repeat {number + 1}")
            done = appending.measure("append", callers=CALLERS, seconds=run.seconds)
            appends.append(done.rate)
            run.server.flush()
            engines.turn(found)
    return [
        *_judged(found, engines.trouble),
        *_steps(found, appends, engines.trouble),
        *_all(found, engines.settings, engines.trouble),
    ]


def ratio(mine: list[float], others: list[float]) -> float:
    """Return the median of the ratios of the same repeat: a neighbour's noise is in both."""
    return statistics.median(a / b for a, b in zip(mine, others, strict=False))


# measure, handler, quantity, unit, peer, bar, stretch, smaller is better
_BARS = (
    ("no-op task, worker CPU", "noop", "cpu_ms", "ms", "arq", 1.0, 0.6, True),
    ("no-op tasks, one worker", "noop", "rates", "tasks/s", "arq", 1.0, 1.8, False),
    (f"submit, {CALLERS} callers", "noop", "submits", "tasks/s", "arq", 1.2, 3.0, False),
    ("5-step task, worker CPU", "steps5", "cpu_ms", "ms", "dbos", 0.05, 0.03, True),
)


def _judged(found: Found, trouble: Mapping[str, str]) -> list[Row]:
    rows: list[Row] = []
    for measure, handler, quantity, unit, peer, bar, stretch, most in _BARS:
        ours, theirs = found.get(("ours", handler)), found.get((peer, handler))
        if ours is None or not ours.rates:
            rows.append(missing(measure, trouble.get("ours", "?"), peer=peer, failed=True))
        elif theirs is None or not theirs.rates:
            rows.append(missing(measure, trouble.get(peer, "?"), peer=peer))
        else:
            mine: list[float] = getattr(ours, quantity)
            shared = ratio(mine, getattr(theirs, quantity))
            value = statistics.median(mine)
            rows.append(
                row(measure, value, unit, peer=peer, ratio=shared, bar=(bar, stretch), most=most)
            )
    return rows


def _steps(found: Found, appends: list[float], trouble: Mapping[str, str]) -> list[Row]:
    rows: list[Row] = []
    for handler, bar in (("steps5", (0.3, 0.5)), ("steps40", (0.5, 0.8))):
        steps = SHAPES[handler][0]
        measure = f"durable steps, tasks of {steps}"
        drained = found.get(("ours", handler))
        if drained is None or not drained.rates:
            rows.append(missing(measure, trouble.get("ours", "?"), peer="appends", failed=True))
            continue
        rates = [each * steps for each in drained.rates]
        shared = ratio(rates, appends)
        value = statistics.median(rates)
        rows.append(row(measure, value, "steps/s", peer="appends", ratio=shared, bar=bar))
    rows.append(row("appends, 64 callers", statistics.median(appends), "ops/s"))
    return rows


def _all(found: Found, settings: Mapping[str, str], trouble: Mapping[str, str]) -> list[Row]:
    rows: list[Row] = []
    for (name, handler), drained in found.items():
        if not drained.rates:
            continue
        shown = settings.get(name, "")
        what = f"{name}: {handler}"
        rows.append(row(f"{what}, worker CPU", statistics.median(drained.cpu_ms), "ms", note=shown))
        rows.append(row(f"{what}, rate", statistics.median(drained.rates), "tasks/s"))
        if name != "dbos" and handler == "noop":
            rows.append(row(f"{name}: submit", statistics.median(drained.submits), "tasks/s"))
            rows.append(row(f"{name}: submit, CPU", statistics.median(drained.submit_ms), "ms"))
    rows += [missing(f"{name}: tasks", why, peer=name) for name, why in trouble.items()]
    return rows
