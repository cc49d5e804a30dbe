"""The processes of xdist are forked from one that has collected the tests already.

Importing the tests and all packages takes most of the time of a short run, and each process would
do it by itself. Each still collects, and finds all modules imported.
"""

from __future__ import annotations

import shlex
import sys
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
    address = undo.enter_context(forkserver.serving(*config.invocation_params.args, stdout=DEVNULL))
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-I", "-S", str(_STAND_IN), address])
