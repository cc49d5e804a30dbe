"""The hosts' own packages. Where one is missing its tests skip, or fail in `make test-hosts`."""

from __future__ import annotations

import ast
import os
import re
import warnings
from importlib import import_module
from importlib.util import find_spec
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from tools.quiet import QUIET

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "small-hosts.md"
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
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = [each for each in blocks if f"redis_state.integrations.{adapter} " in each]
    names: dict[str, Any] = {}
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compiled = compile(code.replace("redis://localhost:6379/0", url), adapter, "exec", flags)
    ran = eval(compiled, names)  # noqa: S307 - our own page
    if isawaitable(ran):
        await ran
    return names
