"""An agent of pydantic-ai whose workers are killed again and again, and resume it elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from redis_state import RedisStateStore
from tests.processes.workers.killed.pydantic_worker import AFTER_PAUSES, BEFORE_PAUSES
from tests.support.agents.killed_agents import check_killed_agent

pytestmark = pytest.mark.worker


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("buy",), ()),
        pytest.param(BEFORE_PAUSES, AFTER_PAUSES, marks=pytest.mark.full),
    ],
)
async def test_what_was_in_flight_when_a_worker_was_killed_is_all_that_is_done_again(
    store: RedisStateStore, tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    await check_killed_agent(
        store, tmp_path, program="pydantic_worker", said="all is paid ", before=before, after=after
    )
