"""The hosts' own packages. Where one is missing its tests skip, or fail in `make test-hosts`."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any

import pytest

REQUIRED = bool(os.environ.get("REDIS_STATE_HOSTS"))


def load(module: str) -> Any:
    """Import a module of a host's. Its own warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if REQUIRED:
            return import_module(module)
        return pytest.importorskip(module, reason=f"needs {module}: make test-hosts")
