from __future__ import annotations

import pytest

from redis_state import RedisStateStore
from redis_state.agents import SessionStore


@pytest.fixture
def sessions(store: RedisStateStore) -> SessionStore:
    """Give the sessions of the test's namespace."""
    return SessionStore(store)
