"""A program as ``python -W error::ResourceWarning`` runs it: one that leaves nothing open.

The interpreters that it starts with asyncio are forked.
"""

from __future__ import annotations

import asyncio
import gc
import runpy
import sys
import warnings
from unittest.mock import patch

from tests.support.processes import forkserver

warnings.simplefilter("error", ResourceWarning)
sys.argv.pop(0)
with patch.object(asyncio, "create_subprocess_exec", forkserver.execute):
    runpy.run_path(sys.argv[0], run_name="__main__")
# The interpreter does this at its end, which a forked process leaves out.
gc.collect()
