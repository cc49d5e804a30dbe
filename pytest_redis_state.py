"""The fixtures of `redis_state.testing`, as a plugin that pytest finds by itself.

Every run of pytest imports this module where redis_state is installed. So it stands beside the
package, and imports nothing of it before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from redis_state import RedisStateStore
    from redis_state.embedded.server import EmbeddedServer
    from redis_state.testing.pool import OpenPool

_async_fixture: Callable[[Any], Any]
try:
    # In its strict mode pytest-asyncio runs no other asynchronous fixtures than those of its own.
    from pytest_asyncio import fixture as _async_fixture
except ImportError:  # without it, another plugin may run them
    _async_fixture = pytest.fixture


@pytest.fixture(scope="session")
def redis_state_server() -> Generator[EmbeddedServer]:
    """Run one real server for the tests of this process."""
    from redis_state.embedded.server import start_embedded  # noqa: PLC0415 - see above

    with start_embedded(None) as server:
        yield server


@_async_fixture
async def redis_state_store(redis_state_server: EmbeddedServer) -> AsyncGenerator[RedisStateStore]:
    """Give a store with a namespace of its own, and check that no key in it would stay for ever."""
    from redis_state.testing.stores import open_store  # noqa: PLC0415 - see above

    async with open_store(redis_state_server.url) as store:
        yield store


@_async_fixture
async def redis_state_pool(redis_state_server: EmbeddedServer) -> AsyncGenerator[OpenPool]:
    """Give what opens pools whose time the test skips, each with a namespace of its own."""
    from redis_state.testing.pool import open_pools  # noqa: PLC0415 - see above

    async with open_pools(redis_state_server.url) as open_pool:
        yield open_pool
