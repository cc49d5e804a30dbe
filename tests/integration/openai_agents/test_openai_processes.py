"""An agent of the OpenAI Agents SDK whose workers are killed again and again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("agents", reason="needs the openai-agents extra")

from redis_state import RedisStateStore
from redis_state.integrations.openai_agents import RedisStateSession
from tests.processes.workers.killed.openai_worker import AFTER_PAUSES, BEFORE_PAUSES
from tests.support.agents.killed_agents import check_killed_agent
from tests.support.processes.pools import SESSION

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
        store, tmp_path, program="openai_worker", said="all is paid", before=before, after=after
    )
    items: Any = await RedisStateSession(SESSION, store=store).get_items()
    kinds = Counter(item.get("type", item.get("role")) for item in items)
    assert kinds == {"user": 1, "function_call": 4, "function_call_output": 4, "message": 1}
