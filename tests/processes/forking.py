"""``python -m <module> ...``, of which the interpreters that it starts are forked too."""

from __future__ import annotations

import asyncio
import runpy
import sys
from unittest.mock import patch

from tests.support.processes import forkserver

with patch.object(asyncio, "create_subprocess_exec", forkserver.execute):
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
