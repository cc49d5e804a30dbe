from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentLoop,
    AgentSession,
    AgentState,
    AgentStep,
    ExecutionBudget,
    ExecutionStatus,
    FrozenMap,
    InferenceResponse,
    Scope,
    ScriptedDriver,
    SessionRuntime,
    SessionStage,
    SessionStore,
    StopReason,
    StopSignal,
    Tool,
    ToolCall,
    ToolRun,
    Turn,
    run_session,
)
from redis_state.agents.state.wire.wire import now
from redis_state.models import SteeringEvent
from tests.support.agents.sessions import EXECUTION, fresh


class Crash(BaseException):
    """A process dies."""


class Fickle:
    """A model that asks for another price each time it is asked, then ends."""

    def __init__(self) -> None:
        self.prices = count(100)

    async def respond(self, turn: Turn) -> InferenceResponse:
        if turn.number == 1:
            return InferenceResponse(content="paid")
        calls = (pay(next(self.prices)), pay(next(self.prices)))
        return InferenceResponse(tool_calls=calls)


class Till:
    """A tool that pays, and crashes its process at one of its calls."""

    def __init__(self, crash_at: int = -1) -> None:
        self.paid: list[tuple[str, Any]] = []
        self.crash_at = crash_at

    def pay(self, run: ToolRun) -> str:
        self.paid.append((run.id, run.arguments["price"]))
        if len(self.paid) - 1 == self.crash_at:
            raise Crash
        return "ok"

    @property
    def tool(self) -> Tool:
        return Tool("pay", self.pay)


class Stops:
    """Steering that says to stop from the nth look on."""

    def __init__(self, at: int) -> None:
        self.left = at

    async def checkpoint(self) -> StopSignal | None:
        self.left -= 1
        return StopSignal(reason=StopReason.USER_REQUESTED) if self.left < 0 else None

    def take(self) -> Sequence[SteeringEvent]:
        return ()


def pay(price: int) -> ToolCall:
    return ToolCall(id="c", name="pay", arguments=FrozenMap(price=price))


@pytest.fixture
def runtime(store: RedisStateStore) -> SessionRuntime:
    return SessionRuntime(SessionStore(store))


@pytest.mark.parametrize("crash_at", [0, 1])
async def test_a_model_that_would_answer_differently_is_not_asked_again_for_tools_that_ran(
    runtime: SessionRuntime, crash_at: int
) -> None:
    await runtime.create(fresh("a"))
    till = Till(crash_at)
    loop = AgentLoop(Fickle(), tools=[till.tool])
    with pytest.raises(Crash):
        await run_session(runtime, "a", loop, execution_id=EXECUTION)
    session = await run_session(runtime, "a", loop, execution_id=EXECUTION)
    assert (session.state.final_response, session.state.step_count) == ("paid\n", 2)
    # Under one id one thing was asked for, however often.
    assert len(till.paid) == crash_at + 3
    assert [price for _, price in dict.fromkeys(till.paid)] == [100, 101]
    assert len({run_id for run_id, _ in till.paid}) == 2
    texts = [(m.role, m.text) for m in session.state.store.section("messages")]
    assert texts == [("assistant", ""), ("tool", "ok"), ("tool", "ok"), ("assistant", "paid")]


async def test_another_call_at_the_same_place_has_another_id() -> None:
    """Without a store nobody keeps the answer."""
    till, model, state = Till(), Fickle(), AgentState().with_new_execution(EXECUTION)
    for _ in range(2):
        async for _ in AgentLoop(model, tools=[till.tool]).states(state):
            pass
    assert len({run_id for run_id, _ in till.paid}) == 4
    surrogate = ToolCall(id="c", name="pay", arguments=FrozenMap(price="\ud800"))
    odd = AgentLoop(ScriptedDriver(surrogate, "done"), tools=[till.tool])
    states = [each async for each in odd.states(state)]
    assert states[-1].status is ExecutionStatus.COMPLETED


async def test_a_stop_that_comes_after_a_crash_stops_before_the_tools_run(
    runtime: SessionRuntime,
) -> None:
    await runtime.create(fresh("a"))
    till = Till(0)
    loop = AgentLoop(Fickle(), tools=[till.tool])
    with pytest.raises(Crash):
        await run_session(runtime, "a", loop, execution_id=EXECUTION)
    scope = Scope("a", 0, Stops(0))
    await run_session(runtime, "a", loop, execution_id=EXECUTION, scope=scope)
    state = (await runtime.get("a")).state
    assert (state.status, state.stop_reason()) == ("stopped", StopReason.USER_REQUESTED)
    assert len(till.paid) == 1
    # Nothing stands in the conversation that a model would wait for an answer to.
    assert state.messages == ()


def in_midst() -> AgentState:
    """Make a session of another language that was stopped in the midst of a step."""
    answer = InferenceResponse(tool_calls=(pay(1), pay(2)))
    step = AgentStep(inference_response=answer)
    state = AgentState().with_user_message("go").with_new_execution().with_current_step(step)
    return AgentState.from_dict(json.loads(json.dumps(state.to_dict())))


async def test_a_step_that_was_left_in_its_midst_elsewhere_is_gone_on_with(
    runtime: SessionRuntime,
) -> None:
    state = in_midst()
    assert state.current_step is not None
    till = Till()
    await runtime.create(AgentSession.fresh(fresh().definition, session_id="a", state=state))
    loop = AgentLoop(ScriptedDriver("unused", "done"), tools=[till.tool])
    session = await run_session(runtime, "a", loop)
    assert [price for _, price in till.paid] == [1, 2]
    assert session.state.steps[0].id == state.current_step.id
    assert session.state.final_response == "done\n"
    empty = AgentState().with_new_execution().with_current_step(AgentStep())
    states = [each async for each in AgentLoop(ScriptedDriver("hi")).states(empty)]
    assert (states[-1].final_response, states[-1].step_count) == ("hi\n", 1)


async def test_time_in_which_nobody_works_is_not_counted(runtime: SessionRuntime) -> None:
    await runtime.create(fresh("a"))
    till = Till(0)
    loop = AgentLoop(Fickle(), tools=[till.tool], budget=ExecutionBudget(max_seconds=600.0))
    with pytest.raises(Crash):
        await run_session(runtime, "a", loop, execution_id=EXECUTION)
    session = await runtime.get("a")
    # As it were had all workers been away for an hour since.
    ago = timedelta(hours=1)
    execution = session.state.execution
    assert execution is not None
    assert execution.current_step_started_at is not None
    older = execution.changed(
        started_at=execution.started_at - ago,
        current_step_started_at=execution.current_step_started_at - ago,
    )
    moved = session.state.changed(execution=older, updated_at=session.state.updated_at - ago)
    await runtime.save(session.with_state(moved))
    session = await run_session(runtime, "a", loop, execution_id=EXECUTION)
    assert session.state.status is ExecutionStatus.COMPLETED
    assert session.state.step_count == 2


async def test_the_work_of_earlier_processes_counts() -> None:
    state = AgentState().with_new_execution(EXECUTION)
    calls = [pay(n) for n in range(5)]
    driver = ScriptedDriver(*calls, "done")
    loop = AgentLoop(driver, tools=[Till().tool])
    states = [each async for each in loop.states(state)]
    half = next(each for each in states if len(each.steps) == 2 and each.current_step is None)
    assert half.execution is not None
    done = [
        each.changed(started_at=each.completed_at - timedelta(minutes=5))
        for each in half.execution.step_executions
    ]
    long = half.execution.changed(step_executions=type(half.execution.step_executions)(done))
    limited = AgentLoop(driver, budget=ExecutionBudget(max_seconds=599.0))
    after = [each async for each in limited.states(half.with_execution(long))]
    assert (after[-1].stop_reason(), after[-1].step_count) == (StopReason.TIME_LIMIT, 2)


async def test_a_step_begins_when_its_model_is_asked() -> None:
    requested: list[Any] = []

    class Model:
        async def respond(self, turn: Turn) -> InferenceResponse:
            requested.append(now())
            calls = (pay(1),) if turn.number < 3 else ()
            return InferenceResponse(tool_calls=calls, content="" if calls else "done")

    loop = AgentLoop(Model(), tools=[Till().tool])
    states = [each async for each in loop.states(AgentState())]
    assert states[-1].execution is not None
    executions = list(states[-1].execution.step_executions)
    ended = states[0].created_at
    for done, moment in zip(executions, requested, strict=True):
        assert ended <= done.started_at <= moment < done.completed_at
        ended = done.completed_at


async def test_what_a_hook_makes_of_the_state_is_gone_on_from(runtime: SessionRuntime) -> None:
    def noting(session: AgentSession) -> AgentSession:
        seen = session.state.context.metadata.get("seen", 0)
        return session.with_state(session.state.with_metadata(seen=seen + 1))

    runtime.add_hook(SessionStage.BEFORE_SAVE, noting)
    await runtime.create(fresh("a"))
    loop = AgentLoop(ScriptedDriver(pay(1), pay(2), "done"), tools=[Till().tool])
    session = await run_session(runtime, "a", loop)
    assert session.state.context.metadata["seen"] == session.version
    assert (await runtime.get("a")).state.context.metadata["seen"] == session.version


async def test_a_hook_may_end_the_execution(runtime: SessionRuntime) -> None:
    def ending(session: AgentSession) -> AgentSession:
        if session.state.current_step is None:
            return session
        return session.with_state(session.state.with_execution_completed())

    runtime.add_hook(SessionStage.BEFORE_SAVE, ending)
    await runtime.create(fresh("a"))
    till = Till()
    session = await run_session(runtime, "a", AgentLoop(Fickle(), tools=[till.tool]))
    assert session.state.status is ExecutionStatus.COMPLETED
    assert till.paid == []


async def test_after_going_back_to_an_older_state_no_id_is_used_again(
    runtime: SessionRuntime,
) -> None:
    before = (await runtime.create(fresh("a"))).state
    till = Till()
    loop = AgentLoop(ScriptedDriver(pay(1), "done"), tools=[till.tool])
    first = await run_session(runtime, "a", loop)
    await runtime.execute("a", lambda session: session.with_state(before))
    second = await run_session(runtime, "a", loop)
    assert (first.state.execution_count, second.state.execution_count) == (1, 1)
    assert len({run_id for run_id, _ in till.paid}) == 2
