"""The processes of xdist are forked from one that has collected the tests already.

Importing the tests and all packages takes most of the time of a short run, and collecting them a
good part of the rest. Each process would do both by itself.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from tests.support.processes import forkserver

_STAND_IN = Path(__file__).with_name("stand_in.py")


def raise_processes(config: pytest.Config, specs: list[Any]) -> None:
    """Have xdist's processes of these specifications forked, by a server that ends with the run."""
    undo = ExitStack()
    config.add_cleanup(undo.close)
    arguments = list(config.invocation_params.args)
    seed = config.getoption("randomly_seed", None)
    if seed is not None:  # one for all, also if nobody has chosen it
        arguments.append(f"--randomly-seed={seed}")
    address = undo.enter_context(forkserver.serving(*arguments, stdout=DEVNULL))
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-I", "-S", str(_STAND_IN), address])


def collect(arguments: Sequence[str]) -> None:
    """Collect the tests that pytest's arguments name, for the processes forked from this one."""
    options = ["-n0", "--collect-only", "-qq", "--junitxml="]
    _collected.status = pytest.main([*arguments, *options], plugins=[_collected])


def take_over(session: pytest.Session) -> bool:
    """Give a session the tests that were collected before the fork; return whether there are any.

    They keep their own tree, whose root is another session: it shares what is set up with this one.
    """
    config, root = session.config, _collected.session
    if root is None or not hasattr(config, "workerinput"):
        return False
    if _collected.status == pytest.ExitCode.INTERNAL_ERROR:
        # What is half imported would be taken for imported here.
        raise RuntimeError("the tests could not be collected: try -n 0")
    if not _collected.is_whole:  # it has failed: this process says why
        return False
    _collected.session = None
    for item in root.items:
        for node in item.iter_parents():
            if node.config is config:
                break
            node.config = config
            if isinstance(node, pytest.Directory):
                _load_conftests(node)
    vars(root)["_setupstate"] = vars(session)["_setupstate"]
    session.items = root.items
    session.testscollected = len(root.items)
    # A file that was skipped or could not be imported is not imported again.
    for report in _collected.reports:
        config.hook.pytest_collectreport(report=report)
    config.hook.pytest_collection_finish(session=session)
    return True


def _load_conftests(folder: pytest.Directory) -> None:
    """Register the hooks of a folder's `conftest.py`, as pytest does to collect the folder."""
    config: Any = folder.config
    config.pluginmanager._loadconftestmodules(
        folder.path,
        config.getoption("importmode"),
        rootpath=config.rootpath,
        consider_namespace_packages=config.getini("consider_namespace_packages"),
    )


class _Collected:
    """What this process has collected, and which files were skipped or failed."""

    def __init__(self) -> None:
        self.session: pytest.Session | None = None
        self.reports: list[pytest.CollectReport] = []
        self.status: int = pytest.ExitCode.INTERNAL_ERROR

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing but files of which a report says why.

        pytest hands over what it has collected, whatever has stopped it.
        """
        if any(report.failed for report in self.reports):
            return self.status in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
        return self.status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep a report that a process of xdist would send."""
        if not report.passed:
            self.reports.append(report)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the tests."""
        self.session = session


_collected = _Collected()
