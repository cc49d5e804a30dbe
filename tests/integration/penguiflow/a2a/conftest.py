from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("penguiflow_a2a", reason="needs the published package")

from redis_state import Settings
from redis_state.integrations.penguiflow import PenguiflowA2ATaskStore
from tests.support.penguiflow.a2a_tasks import make


@pytest.fixture
async def tasks(settings: Settings) -> AsyncIterator[PenguiflowA2ATaskStore]:
    """Give a store of tasks on the test's namespace."""
    async with make(settings) as made:
        yield made
