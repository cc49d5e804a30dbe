"""``python -m benchmarks``: measure, judge, write ``docs/benchmarks``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.driver import ROOT, NotMeasured
from benchmarks.gateway.part import measure_gateway
from benchmarks.report import Row, missed, missing, notes, table, write
from benchmarks.runner import Run
from benchmarks.server import BenchServer, machine
from benchmarks.store import (
    archives,
    archiving,
    cluster,
    graphs,
    growth,
    guarantees,
    latencies,
    listening,
    memory,
    rates,
    reading,
)
from benchmarks.tasks.part import measure_tasks
from redis_state.errors import RedisStateError

PARTS: dict[str, Callable[[Run], list[Row]]] = {
    "rates": rates.measure_rates,
    "latencies": latencies.measure_latencies,
    "listening": listening.measure_listening,
    "reading": reading.measure_reading,
    "memory": memory.measure_memory,
    "growth": growth.measure_growth,
    "guarantees": guarantees.measure_guarantees,
    "tasks": measure_tasks,
    "cluster": cluster.measure_cluster,
    "gateway": measure_gateway,
    "langgraph": graphs.measure_graphs,
    "archives": archives.measure_archives,
    "archiving": archiving.measure_archiving,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts asked for, or all. Status 1 under ``--strict`` when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which parts; all if none")
    parser.add_argument("--quick", action="store_true", help="about three minutes, less exact")
    parser.add_argument(
        "--size", type=float, default=1.0, help="a part of the gateway's clients: 0.5 is half"
    )
    parser.add_argument("--strict", action="store_true", help="status 1 when a bar is missed")
    parser.add_argument(
        "--out",
        type=Path,
        help="write latest.json and the plots there; of some parts their rows in it",
    )
    asked = parser.parse_args(arguments)
    rows: list[Row] = []
    began = time.monotonic()
    with BenchServer() as server:
        run = Run(server, quick=asked.quick, size=asked.size)
        about = {
            "machine": machine(),
            "server": server.version,
            "quick": asked.quick,
            "repeats": run.repeats,
            "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }
        run.tell(f"{server.version}; {about['machine']}")
        for name in asked.parts or PARTS:
            server.flush()
            try:
                found = PARTS[name](run)
            except (NotMeasured, RedisStateError, RuntimeError, OSError) as error:
                found = [missing(name, str(error), failed=True)]
            rows += [replace(each, part=name) for each in found]
    about["seconds"] = round(time.monotonic() - began)
    print(table(rows))
    print(notes(rows), end="")
    if asked.out is not None:
        _keep(asked.out, about, rows, asked.parts)
    short = missed(rows)
    if short:
        print(f"\n{len(short)} missed: " + "; ".join(short), file=sys.stderr)
    return 1 if short and asked.strict else 0


def _keep(
    folder: Path, about: Mapping[str, object], rows: Sequence[Row], parts: Sequence[str]
) -> None:
    path = write(folder, about, rows, parts)
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    print(f"\nwritten: {shown}", file=sys.stderr)
    if parts:
        return
    try:
        from benchmarks.plots import draw  # noqa: PLC0415 - needs the extra `bench`
    except ImportError:
        print("no plots: they need the extra `bench`", file=sys.stderr)
    else:
        draw(folder, about, rows)


if __name__ == "__main__":
    sys.exit(main())
