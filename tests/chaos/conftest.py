"""How large the trials are, and their report.

REDIS_STATE_CHAOS_SIZE is the size, 1 being the full one; REDIS_STATE_CHAOS_REPORT names the file
for the report, beside which a folder gets the histories.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.support.trial import Size, Trial, table
from tests.support.servers.choice import describe

_ROWS = pytest.StashKey[list[dict[str, Any]]]()
_REDUCED = 0.02
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every trial."""
    for item in items:
        if "trial" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1_800 if _size().full else 300))


@pytest.fixture(scope="session")
def size() -> Size:
    """Give the size of all trials."""
    return _size()


@pytest.fixture
def trial(request: pytest.FixtureRequest, size: Size) -> Iterator[Trial]:
    """Give a test its trial, and the report its row, however the test ends."""
    name = request.node.name.removeprefix("test_").replace("_", " ")
    made = Trial(name, size)
    yield made
    made.seconds = time.monotonic() - made.began
    request.config.stash.setdefault(_ROWS, []).append(made.row())
    report = os.environ.get("REDIS_STATE_CHAOS_REPORT")
    if report:
        made.write_history(Path(report).with_suffix(""))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table and write the report, if one was asked for."""
    path = os.environ.get("REDIS_STATE_CHAOS_REPORT")
    rows = terminalreporter.config.stash.get(_ROWS, list[dict[str, Any]]())
    if not path or not rows:
        return
    report = {
        "size": _size().factor,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "server": describe(),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "ok": all(row["ok"] for row in rows),
        "trials": rows,
    }
    Path(path).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    terminalreporter.section("chaos")
    for line in table(rows):
        terminalreporter.line(line)
    for row in rows:
        if row["figures"]:
            terminalreporter.line(f"{row['name']}: {json.dumps(row['figures'])}")
    terminalreporter.line(f"report: {path}")


def _size() -> Size:
    return Size(float(os.environ.get("REDIS_STATE_CHAOS_SIZE", _REDUCED)))
