"""A plugin of pytest: ours in the place of a host's store, and a report of its tests about it."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from tools.upstream.host import LEFT_OUT, Host

HOST: Host = import_module(f"tools.upstream.{os.environ['UPSTREAM_HOST']}").HOST
_left_out: Counter[str] = Counter()
_outcomes: dict[str, str] = {}

# Before the modules of tests are imported: they import the store by name.
OURS = bool(os.environ["UPSTREAM_URL"])
if OURS:
    HOST.install(os.environ["UPSTREAM_URL"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that are about the store and apply."""
    about = [item for item in items if _is_about_the_store(item)]
    kept = [item for item in about if HOST.reason(item.nodeid) is None]
    _left_out.update(reason for item in about if (reason := HOST.reason(item.nodeid)))
    # A run that breaks off leaves some of them so.
    _outcomes.update(dict.fromkeys((item.nodeid for item in kept), "not run"))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    for item in kept:
        test: Any = getattr(item, "obj", None)
        if OURS and HOST.around is not None and inspect.iscoroutinefunction(test):
            cast("Any", item).obj = HOST.around(test)


def _is_about_the_store(item: pytest.Item) -> bool:
    function = cast("Callable[..., object]", getattr(item, "function", None))
    named = HOST.names_the_store(inspect.getsource(function))
    return named and re.search(HOST.variant, item.nodeid) is not None


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Count a file that cannot be read as a failed test."""
    if report.failed:
        _outcomes[report.nodeid] = "failed"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of a test's phases. One that leaves itself out says why."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _, _, reason = report.longrepr[-1].partition(LEFT_OUT)
        if reason:
            _left_out[reason] += 1
            _outcomes.pop(report.nodeid, None)
            return
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the report."""
    report = {"outcomes": _outcomes, "left_out": _left_out}
    Path(os.environ["UPSTREAM_REPORT"]).write_text(json.dumps(report), encoding="utf-8")
