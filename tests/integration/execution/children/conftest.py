from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from tests.support.tasks.crash_states import close_queues


@pytest.fixture(autouse=True)
async def no_queue_stays_open() -> AsyncIterator[None]:
    """Close the queues of a test's sweepers."""
    yield
    await close_queues()
