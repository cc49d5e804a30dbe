"""The command ``python -m examples.review``."""

from __future__ import annotations

import runpy

runpy.run_module("examples.review", run_name="__main__")
