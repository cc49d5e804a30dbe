"""Executions of an agent are recorded once, and outlive their session."""

from __future__ import annotations

from datetime import timedelta

import pytest

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentState,
    ExecutionHistory,
    SessionStore,
    summary_of,
)
from redis_state.errors import (
    InvalidField,
)
from tests.support.agents.sessions import stepped
from tests.support.samples import admin


async def test_an_execution_is_recorded_once_and_outlives_its_session(
    store: RedisStateStore,
) -> None:
    history = ExecutionHistory(store)
    agent = "00000001-0000-4000-8000-000000000001"
    assert await history.last(agent) is None
    assert list(await history.all(agent)) == []
    state = stepped(AgentState(agent_id=agent), 1).with_execution_completed()
    summary = summary_of(state)
    assert await history.record(agent, summary)
    assert not await history.record(agent, summary)
    later = summary_of(stepped(state.for_next_execution(), 2).with_failure(ValueError("no")))
    assert await history.record(agent, later)
    assert await history.count(agent) == 2
    assert await history.last(agent) == later
    assert list(await history.all(agent)) == [summary, later]
    assert list(summary) == [
        "executionId",
        "executionNumber",
        "status",
        "stepCount",
        "usage",
        "duration",
        "startedAt",
        "completedAt",
        "stopReason",
        "stopMessage",
        "errorCount",
    ]
    assert (later["status"], later["errorCount"]) == ("failed", 1)
    with pytest.raises(InvalidField):
        await history.record(agent, {})
    with pytest.raises(InvalidField):
        summary_of(AgentState())


@pytest.mark.parametrize(("days", "kept"), [(1, 90), (400, 400)])
async def test_an_execution_is_known_as_long_as_a_session_that_may_repeat_it(
    store: RedisStateStore, days: int, kept: int
) -> None:
    history = ExecutionHistory(SessionStore(store, lifetime=timedelta(days=days)))
    agent = "00000001-0000-4000-8000-000000000001"
    state = stepped(AgentState(agent_id=agent), 1).with_execution_completed()
    await history.record(agent, summary_of(state))
    left_ms = await admin(store, "PTTL", store.base.keys.executions(agent).rows)
    # A log lives up to half as long again.
    assert kept <= left_ms / 86_400_000 <= 1.5 * kept
