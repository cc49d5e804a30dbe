"""What tests of recovery open is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def _no_queue_stays_open() -> AsyncIterator[None]:
    yield
    # Tests of this folder are skipped without the worker extra.
    from tests.support.tasks.crash_states import close_queues  # noqa: PLC0415 - the extra

    await close_queues()
