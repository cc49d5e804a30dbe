"""A gateway over a real server and a real pool, for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from tests.support.http.gateway import Served, gateway_of


@pytest.fixture
async def served(store: RedisStateStore) -> AsyncIterator[Served]:
    """Serve all handlers, and their gateway."""
    async with gateway_of(store) as opened:
        yield opened
