"""The clock that tests move on, see `redis_state.testing`."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.key_groups import QueueKeys


class ClockScripts(ScriptRunner):
    """The clock that tests move on."""

    @script
    def skip_time(self, shift: str, *, others: Sequence[str], until_ms: int) -> PendingReply:
        """OK now."""

    @script
    def look_agenda(self, keys: QueueKeys) -> PendingReply:
        """OK jobs claims turns waits paused."""
