"""A fork of an agent's task continues behind the calls before it, and has a time of its own."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("pydantic_ai", reason="needs the pydantic-ai extra")

from redis_state import RedisStateStore
from redis_state.integrations.pydantic_ai import pydantic_handler
from redis_state.models import TaskStatus
from redis_state.worker import StepPolicy
from tests.support.agents.pydantic_ai import call, durable_agent, scripted
from tests.support.processes.pools import SESSION, pool

pytestmark = pytest.mark.worker


async def test_a_fork_has_the_calls_before_it_and_the_time_limit_begins_with_it(
    store: RedisStateStore,
) -> None:
    seen: list[int] = []
    calls: Counter[str] = Counter()
    agent = durable_agent(scripted([call("look")], [call("buy")], "done", seen=seen))

    @agent.tool_plain
    def look() -> str:
        calls["look"] += 1
        return "seen"

    @agent.tool_plain
    def buy() -> str:
        calls["buy"] += 1
        return "bought"

    handler = pydantic_handler(agent, history=True, timeout=600)
    # What it leaves out of its source's records would fail it.
    steps = StepPolicy(on_changed="fail")
    async with pool(store, {"clerk": handler}, steps=steps) as client:
        task = await client.submit("clerk", "go", session_id=SESSION, in_turn=True)
        assert await client.result(SESSION, task, timeout_s=60) == "done"
        recorded = [step.step for step in await client.snapshots(SESSION, task)]
        (before,) = [step for step in recorded if "call_tool:buy" in step]
        fork = await client.fork(SESSION, task, before=before)
        ended = await client.wait(SESSION, fork, timeout_s=60)
        assert (ended.status, ended.error, ended.result) == (TaskStatus.COMPLETE, None, "done")
        begun = [step.step for step in await client.snapshots(SESSION, fork)]
    assert calls == {"look": 1, "buy": 2}
    assert seen == [0, 1, 2, 2]
    assert len([step for step in begun if "__begins" in step]) == 2
