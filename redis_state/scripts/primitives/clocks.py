"""The clock that tests move on, see `redis_state.testing`."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner


class ClockScripts(ScriptRunner):
    """The clock that tests move on."""

    @script
    def skip_time(self, shift: str, *, others: Sequence[str], until_ms: int) -> PendingReply:
        """OK now."""
