"""What `make test` leaves to `make test-exhaustive`: cases of costly tests, but for one of each.

`tests/costly.txt` names the functions of these tests: sweeps that kill a process at each place,
trials under load, sets of servers, interpreters that import everything. Of a test with several
cases that one stays which a line names with its id, else that with the first id. So of the tests of
both archives some stay with each. A line that ends with ``[]`` leaves none: each case is dear, and
other tests of its kind stay. The list is written from the CPU seconds of the whole suite. The ids
that it had stay:

    make test MARKS= PYTEST_ARGS="-p tests.support.processes.cpu --cpu-report=cpu.jsonl"
    .venv/bin/python -m tests.support.costs cpu.jsonl
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import pytest

FILE = Path(__file__).resolve().parents[1] / "costly.txt"
# Their share of all CPU seconds. With the rest, `make test` takes some three minutes on two cores.
SHARE = 0.75
# Checks of the sources, which a contributor wants in each run whatever they cost.
CHECKS = ("tests/guide/test_prose.py", "tests/unit/package/", "tests/unit/scripts/")


def listed(text: str) -> frozenset[str]:
    """Return what a list names, one a line: functions, and the cases that stay."""
    lines = text.splitlines()
    return frozenset([*lines, *map(function_of, lines)])


def left_out(items: Iterable[pytest.Item], costly: frozenset[str]) -> Iterator[pytest.Item]:
    """Yield the tests of costly functions, without one case of those that have several.

    That is the same in every order of the tests: the case that is named, or that with the first id.
    None stays of a function that is named with ``[]``.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        function = function_of(item.nodeid)
        if function in costly and item.get_closest_marker("full") is None:
            cases.setdefault(function, []).append(item)
    for function, each in cases.items():
        each.sort(key=lambda item: (item.nodeid not in costly, item.nodeid))
        yield from each if f"{function}[]" in costly else each[1:] or each


def function_of(test: str) -> str:
    """Return the function of a test, without the case."""
    return test.partition("[")[0]


def costliest(rows: Sequence[tuple[str, float]], share: float = SHARE) -> list[str]:
    """Name the functions whose cases cost most, so many that leaving them out saves this share."""
    cases: dict[str, list[float]] = {}
    for test, seconds in sorted(rows):
        cases.setdefault(function_of(test), []).append(seconds)
    wanted = share * sum(map(sum, cases.values()))
    names: list[str] = []
    for name in sorted(cases, key=lambda name: fmean(cases[name]), reverse=True):
        if wanted <= 0:
            break
        if name.startswith(CHECKS):
            continue
        names.append(name)
        wanted -= sum(cases[name]) if len(cases[name]) == 1 else sum(cases[name][1:])
    return sorted(names)


def main(report: Path) -> None:
    """Write the list from a report."""
    cores = os.cpu_count() or 1
    rows = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    spent = [(row["test"], row["own"] + row["below"], row["wall"]) for row in rows]
    # The first test of a process may be charged with what it was forked from.
    names = costliest([(test, took) for test, took, wall in spent if took <= cores * wall])
    staying = {line for line in FILE.read_text(encoding="utf-8").splitlines() if "[" in line}
    lines = [line for line in staying if function_of(line) in names]
    lines += set(names) - set(map(function_of, lines))
    FILE.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
