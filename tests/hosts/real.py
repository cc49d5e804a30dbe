"""The hosts' own packages. Where one is missing its tests skip, or fail in `make test-hosts`."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support import pages
from tools.quiet import QUIET

REQUIRED = bool(os.environ.get("REDIS_STATE_HOSTS"))


def load(module: str) -> Any:
    """Import a module of a host's, which is quiet from then on. Its own warnings are not ours."""
    if find_spec(module.partition(".")[0]):
        # The processes of the test inherit it.
        os.environ.update(QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if REQUIRED:
            return import_module(module)
        return pytest.importorskip(module, reason=f"needs {module}: make test-hosts")


async def run_block(adapter: str, url: str) -> dict[str, Any]:
    """Run the example of an adapter on its page; return the names that it leaves."""
    code = pages.block_of("small-hosts.md", f"redis_state.integrations.{adapter} ")
    return await pages.run_block(code.replace("redis://localhost:6379/0", url))
