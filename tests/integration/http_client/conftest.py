"""A gateway over a real server, a real pool and real HTTP, for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("starlette", reason="needs the gateway extra")

from redis_state import RedisStateStore
from tests.support.http.http_gateway import OverHttp, over_http


@pytest.fixture
async def over(store: RedisStateStore) -> AsyncIterator[OverHttp]:
    """Serve all handlers, their gateway, and a client of it."""
    async with over_http(store) as opened:
        yield opened
