"""Erasure: what is kept of a session or a user, everywhere, with a report.

Also the release of what is held for an archive that is no more.

`docs/explanation/archive.md` says what belongs to a session, and which crash points there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis_state.lazy import lazily

if TYPE_CHECKING:
    from redis_state.erasure.eraser import Eraser
    from redis_state.erasure.releasing import release_held
    from redis_state.models.erasure import ErasureReport
    from redis_state.models.releasing import ReleaseReport
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "redis_state.erasure.eraser": "Eraser",
            "redis_state.erasure.releasing": "release_held",
            "redis_state.models.erasure": "ErasureReport",
            "redis_state.models.releasing": "ReleaseReport",
        },
    )

__all__ = ["Eraser", "ErasureReport", "ReleaseReport", "release_held"]
