from __future__ import annotations

import pytest

from redis_state import Settings


@pytest.fixture
def url(settings: Settings) -> str:
    """Give the URL of the suite's server."""
    return settings.url.get_secret_value()


@pytest.fixture
def key(settings: Settings) -> str:
    """Give a key of the test's namespace."""
    return f"{settings.namespace}:key"
