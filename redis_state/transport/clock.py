"""The server's clock: the only one that decides anything."""

from __future__ import annotations

from typing import Any


def ms_of(time: Any) -> int:
    """Read a reply to TIME in milliseconds."""
    seconds, micros = time
    return int(seconds) * 1000 + int(micros) // 1000


def us_of(time: Any) -> int:
    """Read a server's time as TIME gives it, in microseconds."""
    seconds, us = time
    return int(seconds) * 1_000_000 + int(us)
