"""The CPU seconds of each test: of its own process, and of the processes that it starts.

``pytest -p tests.support.processes.cpu --cpu-report=<file>`` writes one JSON line for each test
that is run: the seconds of this process, of the processes below it, and of the clock. A process of
the fork server counts among those below when it has ended, but not one that it had forked itself. A
daemon does not count, because this process is not its parent.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import forkserver

_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")
_TASKS = Path("/proc/self/task")
# While a child ends, the kernel may leave out another one: a child once seen is read to its end.
_seen: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--cpu-report", metavar="FILE", help="write the CPU seconds of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with an empty file, in the process that starts the others."""
    path = config.getoption("cpu_report")
    if path and not hasattr(config, "workerinput"):
        Path(path).write_text("", encoding="utf-8")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test with its fixtures."""
    path = item.config.getoption("cpu_report")
    if not path or item.get_closest_marker("skip"):
        return (yield)
    began, own, below = time.monotonic(), time.process_time(), _below()
    try:
        return (yield)
    finally:
        row = {
            "test": item.nodeid,
            "own": round(time.process_time() - own, 3),
            "below": round(_below() - below, 3),
            "wall": round(time.monotonic() - began, 3),
        }
        # Whole lines, so that processes can share the file.
        with Path(path).open("ab", buffering=0) as report:
            report.write(json.dumps(row).encode() + b"\n")


def _below() -> float:
    """Add up the CPU seconds of the children that have ended, and of those that run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    for task in _TASKS.iterdir():
        with suppress(OSError):
            _seen.update((task / "children").read_text(encoding="ascii").split())
    own = ended.ru_utime + ended.ru_stime + sum(map(_running, list(_seen)))
    return own + forkserver.ended_s()


def _running(pid: str) -> float:
    """Read what a child has used, and what those children of it used that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        fields = ["", ""]
    if fields[1] != str(os.getpid()):
        _seen.discard(pid)
        return 0.0
    return sum(map(int, fields[11:15])) * _TICKS_S
