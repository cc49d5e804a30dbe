"""A run shows how many deaths each of its sweeps had, also of one that failed."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.support.deaths import DEATHS, counted


def _report(
    name: str, outcome: Literal["passed", "failed"], when: Any = "call", **properties: object
) -> pytest.TestReport:
    location = "test_sweeps.py", 1, name
    found = list(properties.items())
    return pytest.TestReport(name, location, {}, outcome, None, when, user_properties=found)


def test_each_sweep_is_shown_once_with_its_outcome() -> None:
    reports = [
        _report("whole", "passed", **{DEATHS: 217}),
        _report("whole", "passed", "teardown", **{DEATHS: 217}),
        _report("broken", "failed", **{DEATHS: 3}),
        _report("other", "passed", other=1),
    ]
    assert list(counted(reports)) == [
        "   217 deaths, passed: whole",
        "     3 deaths, failed: broken",
    ]
