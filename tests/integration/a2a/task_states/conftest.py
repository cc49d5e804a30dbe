from __future__ import annotations

import pytest

from redis_state import RedisStateStore
from redis_state.integrations.embabel.task_state_manager import TaskStateManager


@pytest.fixture
def tasks(store: RedisStateStore) -> TaskStateManager:
    """Give the manager of the test's namespace."""
    return TaskStateManager(store)
