from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("a2a.server.cluster", reason="needs a2a-sdk 1.2")

from redis_state import Settings
from redis_state.integrations.a2a import (
    A2ABackend,
    create_event_stream,
    create_versioned_task_store,
)
from redis_state.integrations.a2a.versioned import RedisTaskEventStream, RedisVersionedTaskStore
from tests.support.a2a.tasks import server_on


@pytest.fixture
async def backend(settings: Settings) -> AsyncIterator[A2ABackend]:
    """Give the backend of the test's namespace."""
    async with server_on(settings) as made:
        yield made


@pytest.fixture
def tasks(backend: A2ABackend) -> RedisVersionedTaskStore:
    """Give its tasks."""
    return create_versioned_task_store(backend)


@pytest.fixture
def stream(backend: A2ABackend) -> RedisTaskEventStream:
    """Give their events."""
    return create_event_stream(backend)
