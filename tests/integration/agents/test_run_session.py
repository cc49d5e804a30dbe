from __future__ import annotations

from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentLoop,
    AgentState,
    ExecutionHistory,
    ExecutionStatus,
    FrozenMap,
    InferenceResponse,
    ScriptedDriver,
    SessionRuntime,
    SessionStage,
    SessionStore,
    StopReason,
    Tool,
    ToolCall,
    ToolRun,
    Turn,
    execution_id_for,
    run_session,
)
from redis_state.errors import InvalidField, SessionBusy
from tests.support.agents.sessions import EXECUTION, fresh

OTHER = "00000002-0000-4000-8000-000000000002"
CALL = ToolCall(id="c", name="work", arguments=FrozenMap(n=1))


class Crash(BaseException):
    """A process dies."""


class Fragile:
    """A tool that crashes its process at its second call, once."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def work(self, run: ToolRun) -> str:
        self.runs.append(run.id)
        if len(self.runs) == 2:
            raise Crash
        return "ok"

    def loop(self, *answers: str) -> AgentLoop:
        driver = ScriptedDriver(CALL, CALL, *(answers or ("done",)))
        return AgentLoop(driver, tools=[Tool("work", self.work)])


def quick(answer: str) -> AgentLoop:
    return AgentLoop(ScriptedDriver(answer))


def said_by_users(state: AgentState) -> list[str]:
    return [m.text for m in state.store.section("messages") if m.role == "user"]


@pytest.fixture
def runtime(store: RedisStateStore) -> SessionRuntime:
    return SessionRuntime(SessionStore(store))


@pytest.fixture
async def fragile(runtime: SessionRuntime) -> Fragile:
    """Leave an execution that was interrupted after its first step."""
    await runtime.create(fresh("a"))
    fragile = Fragile()
    with pytest.raises(Crash):
        await run_session(runtime, "a", fragile.loop(), message="go", execution_id=EXECUTION)
    return fragile


async def test_an_execution_that_others_followed_is_not_done_again(
    runtime: SessionRuntime,
) -> None:
    await runtime.create(fresh("a"))
    first = await run_session(runtime, "a", quick("one"), message="go", execution_id=EXECUTION)
    second = await run_session(runtime, "a", quick("two"), message="go", execution_id=OTHER)
    again = await run_session(runtime, "a", quick("three"), message="go", execution_id=EXECUTION)
    assert again == second
    assert again.state.execution_count == 2
    history = ExecutionHistory(runtime.sessions)
    kept = await history.find(first.state.agent_id, EXECUTION)
    assert kept is not None
    assert kept["status"] == "completed"
    assert await history.find(first.state.agent_id, CALL.id) is None


async def test_a_crash_after_the_last_save_does_not_have_an_execution_done_twice(
    runtime: SessionRuntime, store: RedisStateStore
) -> None:
    await runtime.create(fresh("a"))
    fragile = SessionRuntime(SessionStore(store))

    def crash(session: Any) -> Any:
        if session.state.status is ExecutionStatus.COMPLETED:
            raise Crash
        return session

    fragile.add_hook(SessionStage.AFTER_SAVE, crash)
    with pytest.raises(Crash):
        await run_session(fragile, "a", quick("one"), execution_id=EXECUTION)
    history = ExecutionHistory(store)
    agent_id = (await runtime.get("a")).state.agent_id
    assert not await history.knows(agent_id, EXECUTION)
    # Somebody else's execution comes before the first one is asked for again.
    await run_session(runtime, "a", quick("two"), execution_id=OTHER)
    assert await history.knows(agent_id, EXECUTION)
    again = await run_session(runtime, "a", quick("three"), execution_id=EXECUTION)
    assert again.state.execution_count == 2
    assert [m.text for m in again.state.messages] == ["one", "two"]


async def test_without_a_name_what_was_interrupted_is_gone_on_with_and_a_message_enters_it(
    runtime: SessionRuntime, fragile: Fragile
) -> None:
    session = await run_session(runtime, "a", fragile.loop(), message="and hurry")
    assert session.state.execution is not None
    assert session.state.execution.execution_id == EXECUTION
    assert (session.state.execution_count, session.state.step_count) == (1, 3)
    assert said_by_users(session.state) == ["go", "and hurry"]
    # The call that crashed ran again under its id.
    assert fragile.runs[1] == fragile.runs[2]
    assert len(set(fragile.runs)) == 2


async def test_another_execution_stops_what_was_interrupted_or_yields_to_it(
    runtime: SessionRuntime, fragile: Fragile
) -> None:
    requested: list[str] = []

    async def yields(execution_id: str) -> bool:
        requested.append(execution_id)
        return True

    with pytest.raises(SessionBusy):
        await run_session(runtime, "a", quick("two"), execution_id=OTHER, yields=yields)
    assert requested == [EXECUTION]
    assert (await runtime.get("a")).state.status is ExecutionStatus.IN_PROGRESS
    second = await run_session(runtime, "a", quick("two"), message="now", execution_id=OTHER)
    assert second.state.status is ExecutionStatus.COMPLETED
    # The first one comes back, and finds itself stopped.
    after = await run_session(
        runtime, "a", fragile.loop(), message="go", execution_id=EXECUTION, yields=yields
    )
    assert after == second
    stopped = await ExecutionHistory(runtime.sessions).find(after.state.agent_id, EXECUTION)
    assert stopped is not None
    assert (stopped["status"], stopped["stepCount"]) == ("stopped", 2)
    assert stopped["stopReason"] == StopReason.STOP_REQUESTED.value
    assert said_by_users(after.state) == ["go", "now"]


async def test_a_fork_has_executions_of_its_own(runtime: SessionRuntime) -> None:
    await runtime.create(fresh("a"))
    source = await run_session(runtime, "a", quick("one"))
    fork = await runtime.sessions.fork("a", as_id="b")
    assert fork.state.agent_id == source.state.agent_id
    for session_id in ("a", "b"):
        await run_session(runtime, session_id, quick("two"))
    # One of the source before the fork, and one of each after it.
    assert await ExecutionHistory(runtime.sessions).count(source.state.agent_id) == 3


async def test_an_execution_of_a_free_name_happens_once_in_each_session_and_can_be_read(
    runtime: SessionRuntime,
) -> None:
    ran: dict[str, str] = {}

    def loop(session_id: str) -> AgentLoop:
        def work(run: ToolRun) -> str:
            assert ran.setdefault(session_id, run.id) == run.id
            return "ok"

        return AgentLoop(ScriptedDriver(CALL, "done"), tools=[Tool("work", work)])

    for session_id in ("a", "b"):
        await runtime.create(fresh(session_id))
        named = execution_id_for(session_id, "order-42")
        for answer in ("first", "again"):
            saved = await run_session(
                runtime, session_id, loop(session_id), message="go", execution_id="order-42"
            )
            loaded = await runtime.get(session_id)
            assert loaded.state == saved.state, answer
            assert loaded.state.execution_count == 1
            assert loaded.state.execution is not None
            assert loaded.state.execution.execution_id == named
        await run_session(runtime, session_id, quick("next"), message="and now?")
        after = await run_session(runtime, session_id, quick("x"), execution_id="order-42")
        assert after.state.execution_count == 2
        assert await ExecutionHistory(runtime.sessions).knows(after.state.agent_id, named)
    # What a tool does outside for one session is never taken for what it does for another.
    assert ran["a"] != ran["b"]


@pytest.mark.parametrize("name", ["", 42, b"order"])
async def test_a_name_that_cannot_be_one_is_refused_before_anything_is_saved(
    name: Any, runtime: SessionRuntime
) -> None:
    await runtime.create(fresh("a"))
    with pytest.raises(InvalidField) as refused:
        await run_session(runtime, "a", quick("x"), message="go", execution_id=name)
    assert refused.value.field == "execution_id"
    message: Any = name or b""
    with pytest.raises(InvalidField) as refused:
        await run_session(runtime, "a", quick("x"), message=message)
    assert refused.value.field == "message"
    assert (await runtime.get("a")).version == 1


async def test_what_a_driver_or_a_tool_gives_never_leaves_a_session_that_cannot_be_read(
    runtime: SessionRuntime,
) -> None:
    class Wrong:
        async def respond(self, turn: Turn) -> Any:
            return "text is no response" if turn.number else InferenceResponse(tool_calls=(CALL,))

    def work(_: ToolRun) -> Any:
        return {"half": "\ud800", "other": {1, 2}, "much": float("nan")}

    await runtime.create(fresh("a"))
    loop = AgentLoop(Wrong(), tools=[Tool("work", work)])
    saved = await run_session(runtime, "a", loop, message="\ud83d\ude00 \udc80")
    loaded = await runtime.get("a")
    assert loaded.state == saved.state
    assert loaded.state.status is ExecutionStatus.FAILED
    assert [error.class_ for error in loaded.state.errors] == ["InvalidField"]
    assert said_by_users(loaded.state) == ["\U0001f600 \udc80"]
