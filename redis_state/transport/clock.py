"""The server's clock: the only one that decides anything."""

from __future__ import annotations

from typing import Any


def ms_of(time: Any) -> int:
    """Read a reply to TIME in milliseconds."""
    seconds, micros = time
    return int(seconds) * 1000 + int(micros) // 1000
