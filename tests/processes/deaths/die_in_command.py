"""The ``redis-state`` command, which dies at a call of a script: before it, or behind its reply.

Without a script it dies behind the n-th reply that it gets.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from redis_state.cli.main import main
from tests.processes.deaths.dying import COUNTED, Death
from tests.processes.workers.killed.versioned_worker import plant

argument: dict[str, Any] = json.loads(os.environ["DIE"])
if "script" in argument:
    plant(argument["when"], argument["script"], Path(argument["mark"]), number=argument["number"])
else:
    with Path(argument["mark"]).open("wb") as mark:
        Death(argument["number"], "after", os.dup(mark.fileno())).plant()
    COUNTED.set(True)
main()
