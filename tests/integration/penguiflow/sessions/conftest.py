"""A session's store here, in another process, and behind a proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from redis_state import Settings
from tests.support.penguiflow.sessions import make_store
from tests.support.servers.proxies.command_proxy import CommandProxy


@pytest.fixture
def options() -> Mapping[str, Any]:
    """Give the options of these stores. A file may have its own."""
    return {}


@pytest.fixture
async def host(settings: Settings, options: Mapping[str, Any]) -> AsyncIterator[Any]:
    async with make_store(settings, **options) as made:
        yield made


@pytest.fixture
async def elsewhere(settings: Settings, options: Mapping[str, Any]) -> AsyncIterator[Any]:
    """Give the store as another process has it."""
    async with make_store(settings, **options) as made:
        yield made


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[CommandProxy]:
    async with CommandProxy(settings.url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
async def far(
    settings: Settings, proxy: CommandProxy, options: Mapping[str, Any]
) -> AsyncIterator[Any]:
    """Give the store through the proxy."""
    async with make_store(settings, proxy.url, **options) as made:
        yield made
