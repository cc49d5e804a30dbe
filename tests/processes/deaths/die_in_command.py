"""The ``redis-state`` command, which dies at a call of a script: before it, or behind its reply."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from redis_state.cli.main import main
from tests.processes.workers.killed.versioned_worker import plant

argument: dict[str, Any] = json.loads(os.environ["DIE"])
plant(argument["when"], argument["script"], Path(argument["mark"]), number=argument["number"])
main()
