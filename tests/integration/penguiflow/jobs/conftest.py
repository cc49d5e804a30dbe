from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("penguiflow.sessions.scheduler", reason="needs the published package")

from redis_state import Settings
from redis_state.integrations.penguiflow import PenguiflowJobStore
from tests.support.penguiflow.jobs import make


@pytest.fixture
async def jobs(settings: Settings) -> AsyncIterator[PenguiflowJobStore]:
    """Give a store of jobs on the test's namespace."""
    async with make(settings) as made:
        yield made
