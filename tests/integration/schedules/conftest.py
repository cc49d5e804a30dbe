"""No test of schedules begins just before an hour: an hourly one would fire in the middle of it."""

from __future__ import annotations

import time

import pytest

from redis_state.testing import eventually

_HOUR_S, _LAST_S = 3_600, 15


@pytest.fixture(autouse=True)
async def hour() -> None:
    """Wait until the hour is over, if it is in its last seconds."""
    await eventually(
        lambda: time.time() % _HOUR_S < _HOUR_S - _LAST_S, "the next hour has begun", timeout_s=60
    )
