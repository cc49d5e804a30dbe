"""Erasure: what is kept of a session or a user, everywhere, with a report.

Also the release of what is held for an archive that is no more.

`docs/explanation/archive.md` says what belongs to a session, and which crash points there are.
"""

from __future__ import annotations

from redis_state.erasure.eraser import Eraser
from redis_state.erasure.releasing import release_held
from redis_state.models.erasure import ErasureReport
from redis_state.models.releasing import ReleaseReport

__all__ = ["Eraser", "ErasureReport", "ReleaseReport", "release_held"]
