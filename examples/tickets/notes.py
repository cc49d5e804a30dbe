"""What tools and models do, written to a file, for the driver to count."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NOTES = "EXAMPLE_NOTES"
# The driver kills the worker that waits for the model of this ticket.
SLOWLY = "Please help. Take your time."
STALLS_S = 60.0


def note(*facts: Any) -> None:
    """Append a line to the file of what was done, whole."""
    line = json.dumps([*facts, os.getpid()]) + "\n"
    handle = os.open(Path(os.environ[NOTES]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
