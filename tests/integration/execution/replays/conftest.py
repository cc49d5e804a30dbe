from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.worker import TaskClient
from tests.support.processes.pools import client_of


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    """Give a client of the test's tasks."""
    async with client_of(store) as opened:
        yield opened
