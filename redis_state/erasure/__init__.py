"""Erasure: what is kept of a session or a user, everywhere, with a report.

`docs/explanation/archive.md` says what belongs to a session, and which crash points there are.
"""

from __future__ import annotations

from redis_state.erasure.eraser import Eraser
from redis_state.models.erasure import ErasureReport

__all__ = ["Eraser", "ErasureReport"]
