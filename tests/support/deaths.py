"""How often a sweep over points of death killed something. A run shows it in the end.

A sweep compares all after each death, so one that passes has lost nothing, and has nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

# What a sweep records of itself, with pytest's `record_property`.
DEATHS = "deaths"
Recorder = Callable[[str, object], None]


def counted(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """Yield a line for each sweep that has recorded its deaths: whether it passed, and how many."""
    for report in reports:
        for name, count in report.user_properties:
            if name == DEATHS and report.when == "call":
                yield f"{count:>6} deaths, {report.outcome}: {report.nodeid}"
