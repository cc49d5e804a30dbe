"""A program as ``python -W error::ResourceWarning`` runs it: one that leaves nothing open."""

from __future__ import annotations

import gc
import runpy
import sys
import warnings

warnings.simplefilter("error", ResourceWarning)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
# The interpreter does this at its end, which a forked process leaves out.
gc.collect()
