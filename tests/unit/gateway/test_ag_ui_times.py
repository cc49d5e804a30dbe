"""Times of AG-UI's events."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state.gateway.chat.ag_ui.events import at_ms


def test_a_time_without_a_zone_is_utc_wherever_the_gateway_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = datetime(2026, 11, 28, 12, tzinfo=UTC)
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        for written in (moment, moment.replace(tzinfo=None)):
            assert at_ms({}, written) == {"timestamp": moment.timestamp() * 1000}
    finally:
        monkeypatch.undo()
        time.tzset()
