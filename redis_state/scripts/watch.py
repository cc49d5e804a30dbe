"""The watch list: what somebody must look at, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from redis_state.scripts.runner import PendingReply, ScriptRunner
from redis_state.transport.resp import Argument


class WatchScripts(ScriptRunner):
    """The watch list: what somebody must look at, and when."""

    def watch_entry(
        self,
        watch: str,
        *,
        entry: bytes,
        delay_ms: int,
        stands: Literal["later", "given", "first"],
    ) -> PendingReply:
        """OK when."""
        return self._run("watch_entry", _with_clock(watch), (entry, delay_ms, stands))

    def claim_due(self, watch: str, *, limit: int, hold_ms: int) -> PendingReply:
        """OK mark, then entry and when it was due, in turn."""
        return self._run("claim_due", _with_clock(watch), (limit, hold_ms))

    def settle_claim(
        self, watch: str, *, mark: bytes, entries: Sequence[tuple[bytes, float | None]]
    ) -> PendingReply:
        """OK settled. ``entries`` with their delays; None takes an entry out."""
        tail: list[Argument] = [mark]
        for entry, delay_ms in entries:
            tail += (entry, "" if delay_ms is None else str(delay_ms))
        return self._run("settle_claim", _with_clock(watch), tuple(tail))


def _with_clock(watch: str) -> tuple[str, str]:
    """Return a list and the time at which it was last written."""
    return watch, f"{watch}:clock"
