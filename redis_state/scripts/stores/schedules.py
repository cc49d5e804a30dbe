"""Schedules: their records, and when a worker must look at each."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.scripts.binding import script
from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.scripts.values import Expected
from redis_state.transport.key_groups import ScheduleKeys


class ScheduleScripts(ScriptRunner):
    """Schedules: their records, and when a worker must look at each."""

    @script
    def save_schedule(
        self,
        keys: ScheduleKeys,
        fields: Mapping[str, bytes],
        *,
        write: str,
        expected: Expected,
        ttl_ms: int,
        schedule_id: str,
        check_ms: int | None,
        sooner: bool,
        restart: bool,
    ) -> PendingReply:
        """OK version now | STALE version write."""
