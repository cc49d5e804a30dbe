"""What processes write down outside of the store: lines of a file, in the order of the things."""

from __future__ import annotations

import json
import os
from pathlib import Path


def note(folder: Path, file: str, *facts: object) -> None:
    """Append a line, whole: one write of a file that is open for appending."""
    line = json.dumps(facts) + "\n"
    handle = os.open(folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
