from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.servers.changes.rollback import Replicas, replicas


@pytest.fixture
async def lagging(unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Replicas]:
    """Give a primary and its replica, which can be made to lag."""
    async with replicas((unused_tcp_port_factory(), unused_tcp_port_factory())) as made:
        yield made
