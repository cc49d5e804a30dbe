from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from redis_state import RedisStateStore, Settings
from redis_state.agents import (
    AgentDefinition,
    AgentLoop,
    AgentSession,
    AgentState,
    ExecutionBudget,
    ExecutionHistory,
    ExecutionStatus,
    FrozenMap,
    InferenceResponse,
    LlmConfig,
    Scope,
    ScriptedDriver,
    SessionRuntime,
    SessionStatus,
    SessionStore,
    StopReason,
    StopSignal,
    SubAgents,
    Tool,
    ToolCall,
    ToolRun,
    Turn,
    Usage,
    run_session,
)
from redis_state.agents.runtime.limits import BudgetUse, cost_of, reached
from redis_state.errors import BackendUnavailable, SessionConflict
from redis_state.models import SteeringEvent, SteeringEventType
from redis_state.testing import leaked_keys
from tests.support.agents.sessions import EXECUTION, STEPS, fresh, same_agent, twenty_steps, undated
from tests.support.servers.faults import run_processes
from tests.support.sizes import sizes

UNLIMITED = ExecutionBudget.unlimited()


def look(run: ToolRun) -> dict[str, Any]:
    return {"found": run.arguments["n"]}


LOOK = Tool("look", look)


def call(n: int = 0, name: str = "look") -> ToolCall:
    return ToolCall(id=f"c{n}", name=name, arguments=FrozenMap(n=n))


@pytest.fixture
def runtime(store: RedisStateStore) -> SessionRuntime:
    return SessionRuntime(SessionStore(store))


async def ended(loop: AgentLoop, state: AgentState | None = None, **options: Any) -> AgentState:
    states = [each async for each in loop.states(state or AgentState(), **options)]
    return states[-1]


async def test_a_loop_asks_runs_tools_and_ends_with_the_answer() -> None:
    driver = ScriptedDriver([call(1), call(2)], "42")
    state = await ended(AgentLoop(driver, tools=[LOOK]), AgentState().with_user_message("why?"))
    assert state.status is ExecutionStatus.COMPLETED
    assert state.execution_count == 1
    assert state.final_response == "42\n"
    assert [step.step_type.value for step in state.steps] == ["tool_execution", "final_response"]
    assert [run.value for run in state.steps[0].tool_executions] == [{"found": 1}, {"found": 2}]
    stated = [(message.role, message.text) for message in state.store.section("messages")]
    assert stated == [
        ("user", "why?"),
        ("assistant", ""),
        ("tool", '{"found":1}'),
        ("tool", '{"found":2}'),
        ("assistant", "42"),
    ]
    assert [message.text for message in state.steps[0].input_messages] == ["why?"]
    assert state.steps[1].input_messages == ()
    assert state.usage == Usage(input=20, output=10)


async def test_the_model_is_told_the_conversation_and_the_tools_that_are_allowed() -> None:
    turns: list[Turn] = []

    class Asked:
        async def respond(self, turn: Turn) -> InferenceResponse:
            turns.append(turn)
            return InferenceResponse(content="yes")

    tools = [Tool(name, look) for name in ("a", "b", "c")]
    definition = AgentDefinition(name="x", tools=("a", "b"), tools_deny=("b",))
    state = AgentState().with_user_message("really?")
    await ended(AgentLoop(Asked(), tools=tools), state, definition=definition)
    assert [tool.name for tool in turns[0].tools] == ["a"]
    assert [message.text for message in turns[0].messages] == ["really?"]


async def test_a_failing_tool_is_told_to_the_model_and_fails_the_execution() -> None:
    def boom(_: ToolRun) -> None:
        raise ValueError("no such page")

    tools = [Tool("boom", boom)]
    driver = ScriptedDriver([call(name="boom"), call(name="nothing")], "sorry")
    state = await ended(AgentLoop(driver, tools=tools))
    assert state.status is ExecutionStatus.FAILED
    results = [message.tool_result for message in state.store.section("messages")]
    reported = [result.content for result in results if result and result.is_error]
    assert reported == ["no such page", "no tool named 'nothing', there are: boom"]
    assert state.step_count == 2
    stopped = await ended(AgentLoop(driver, tools=tools, stop_on_tool_error=True))
    assert stopped.step_count == 1
    assert stopped.stop_reason() is StopReason.ERROR


async def test_a_failing_driver_fails_the_execution_and_a_server_that_is_away_does_not() -> None:
    failed = await ended(AgentLoop(ScriptedDriver(call(), RuntimeError("bad key")), tools=[LOOK]))
    assert failed.status is ExecutionStatus.FAILED
    assert [error.message for error in failed.errors] == ["bad key"]
    assert failed.step_count == 2
    away = AgentLoop(ScriptedDriver(BackendUnavailable("here", "gone")))
    with pytest.raises(BackendUnavailable):
        await ended(away)
    beyond = await ended(AgentLoop(ScriptedDriver()))
    assert beyond.status is ExecutionStatus.FAILED


async def test_a_server_that_is_away_from_the_tasks_of_a_tool_is_not_the_tools_failure() -> None:
    answers = [BackendUnavailable("here", "gone"), ValueError("no such page"), None]

    async def call_store() -> None:
        if answer := answers.pop(0):
            raise answer

    async def together(_: ToolRun) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(call_store())
        return "done"

    states, tools = list[AgentState](), [Tool("together", together)]
    driver = ScriptedDriver([call(name="together")], [call(name="together")], "answer")

    async def execute() -> None:
        async for state in AgentLoop(driver, tools=tools).states(AgentState()):
            states.append(state)

    with pytest.raises(BackendUnavailable):
        await execute()
    # The next process runs the tool again. Its own error is its failure.
    after = await ended(AgentLoop(driver, tools=tools), states[-1])
    results = [message.tool_result for message in after.store.section("messages")]
    assert [result.is_error for result in results if result] == [True, False]
    assert not answers
    grouped = ExceptionGroup("tasks", [BackendUnavailable("here", "gone")])
    with pytest.raises(BackendUnavailable):
        await ended(AgentLoop(ScriptedDriver(grouped)))


@pytest.mark.parametrize(
    ("budget", "reason", "steps"),
    [
        (ExecutionBudget(max_steps=2), StopReason.STEPS_LIMIT, 2),
        (ExecutionBudget(max_tokens=31), StopReason.TOKEN_LIMIT, 3),
        (ExecutionBudget(max_seconds=0.0), StopReason.TIME_LIMIT, 0),
        (ExecutionBudget(max_cost=0.0001), StopReason.TOKEN_LIMIT, 2),
        (ExecutionBudget(deadline=datetime(2025, 1, 1, tzinfo=UTC)), StopReason.TIME_LIMIT, 0),
    ],
)
async def test_each_limit_stops_before_the_next_step(
    budget: ExecutionBudget, reason: StopReason, steps: int
) -> None:
    loop = AgentLoop(twenty_steps(), tools=[LOOK], budget=budget)
    # 10 tokens in at 2 and 5 out at 6 for a million: 0.00005 a step.
    pricing = FrozenMap(input=2, outputPerMToken=6)
    state = await ended(loop, AgentState(llm_config=LlmConfig(pricing=pricing)))
    assert state.status is ExecutionStatus.STOPPED
    assert (state.stop_reason(), state.step_count) == (reason, steps)
    assert state.stop_source() == "guard"


async def test_a_definitions_budget_counts_unless_the_loop_has_one_and_the_default_is_20() -> None:
    calls = [call(n) for n in range(30)]
    definition = AgentDefinition(name="x", budget=ExecutionBudget(max_steps=3))
    loop = AgentLoop(ScriptedDriver(*calls), tools=[LOOK])
    assert (await ended(loop, definition=definition)).step_count == 3
    assert (await ended(loop)).step_count == 20
    own = AgentLoop(ScriptedDriver(*calls, "done"), tools=[LOOK], budget=UNLIMITED)
    assert (await ended(own, definition=definition)).step_count == 31


def test_a_limit_that_is_not_reached_says_nothing_and_facts_are_the_originals() -> None:
    spent = BudgetUse(2, Usage(input=5), 1.5, 0.0)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    roomy = ExecutionBudget(max_steps=3, max_tokens=6, max_seconds=2.0, max_cost=1.0)
    assert reached(roomy, spent, at=at) is None
    signal = reached(ExecutionBudget(max_tokens=5), spent, at=at)
    assert signal is not None
    assert signal.context == {"totalTokens": 5, "maxTotalTokens": 5}
    assert cost_of(Usage(input=1_000_000, output=5), {"input": 3}) == 3.0


class Said:
    """Steering that says things at given boundaries."""

    def __init__(self, *stated: SteeringEvent, stop_at: int = -1) -> None:
        self.stated = list(stated)
        self.stop_at = stop_at
        self.looks = 0

    async def checkpoint(self) -> StopSignal | None:
        self.looks += 1
        if self.looks - 1 == self.stop_at:
            return StopSignal(reason=StopReason.USER_REQUESTED, source="steering")
        return None

    def take(self) -> Sequence[SteeringEvent]:
        stated, self.stated = self.stated, []
        return stated


def event(kind: SteeringEventType, event_id: str, **payload: Any) -> SteeringEvent:
    return SteeringEvent(
        session_id="s", task_id="t", event_id=event_id, event_type=kind, payload=payload
    )


async def test_what_is_said_enters_the_conversation_once_and_a_stop_stops() -> None:
    events = [
        event(SteeringEventType.USER_MESSAGE, "u", text="hurry"),
        event(SteeringEventType.INJECT_CONTEXT, "i", text="it rains"),
        event(SteeringEventType.REDIRECT, "r", goal="home"),
        event(SteeringEventType.PRIORITIZE, "p", priority=1),
    ]
    loop = AgentLoop(twenty_steps(), tools=[LOOK])
    state = await ended(loop, scope=Scope(steering=Said(*events, stop_at=2)))
    assert (state.status, state.step_count) == (ExecutionStatus.STOPPED, 2)
    assert state.stop_reason() is StopReason.USER_REQUESTED
    stated = [(m.role, m.text) for m in state.store.section("messages") if "event_id" in m.metadata]
    assert stated == [("user", "hurry"), ("system", "it rains"), ("user", "home")]
    assert state.execution is not None
    running = state.execution.changed(status=ExecutionStatus.PENDING)
    again = await ended(loop, state.with_execution(running), scope=Scope(steering=Said(*events)))
    kept = [m for m in again.store.section("messages") if "event_id" in m.metadata]
    assert len(kept) == 3


async def test_an_answer_that_came_too_early_is_followed_by_another() -> None:
    class Late(Said):
        def take(self) -> Sequence[SteeringEvent]:
            late = event(SteeringEventType.USER_MESSAGE, "u", text="and then?")
            return [late] if self.looks == 2 else []

    state = await ended(AgentLoop(ScriptedDriver("one", "two")), scope=Scope(steering=Late()))
    assert state.final_response == "two\n"
    assert state.step_count == 2


async def test_an_execution_is_done_once_by_its_name(runtime: SessionRuntime) -> None:
    await runtime.create(fresh("a"))
    loop = AgentLoop(ScriptedDriver(call(), "done"), tools=[LOOK])
    first = await run_session(runtime, "a", loop, message="go", execution_id=EXECUTION)
    # Begun, answered, two steps, over: the message is saved with the first of them.
    assert first.version == 6
    again = await run_session(runtime, "a", loop, message="go", execution_id=EXECUTION)
    assert again == first
    other = await run_session(runtime, "a", loop, message="go")
    assert other.state.execution_count == 2
    stated = [m.text for m in other.state.store.section("messages") if m.role == "user"]
    assert stated == ["go", "go"]
    history = ExecutionHistory(runtime.sessions)
    recorded = await history.all(first.state.agent_id)
    assert [each["executionNumber"] for each in recorded] == [1, 2]
    assert other.status is SessionStatus.ACTIVE


async def test_somebody_elses_save_is_a_conflict_and_the_loop_goes_on_after_it(
    runtime: SessionRuntime,
) -> None:
    async def meddle(_: ToolRun) -> str:
        if not (await runtime.get("a")).state.context.metadata:
            await runtime.execute("a", lambda s: s.with_state(s.state.with_metadata(seen=True)))
        return "ok"

    await runtime.create(fresh("a"))
    loop = AgentLoop(ScriptedDriver(call(name="meddle"), "done"), tools=[Tool("meddle", meddle)])
    with pytest.raises(SessionConflict):
        await run_session(runtime, "a", loop)
    session = await run_session(runtime, "a", loop)
    assert session.state.status is ExecutionStatus.COMPLETED
    assert session.state.context.metadata == {"seen": True}
    assert (session.state.execution_count, session.state.step_count) == (1, 2)


# The full size dies at every save. An odd distance meets saves of answers and of steps alike.
@pytest.mark.slow
@pytest.mark.parametrize("every", sizes(7, 1))
async def test_an_agent_killed_at_every_save_ends_like_an_undisturbed_one(
    settings: Settings,
    beside: Callable[[str], Settings],
    runtime: SessionRuntime,
    every: int,
) -> None:
    await runtime.create(same_agent("a"))
    loop = AgentLoop(twenty_steps(), tools=[LOOK])
    undisturbed = await run_session(runtime, "a", loop, execution_id=EXECUTION)
    assert (undisturbed.state.status, undisturbed.state.step_count) == ("completed", STEPS)
    saves = 2 * STEPS + 1  # begun, each answer but the last, each step, over
    assert undisturbed.version == saves + 1
    # The same agent and the same execution, each time in a world of its own.
    points = [
        (beside(f"{stage}-{at}").namespace, stage, at)
        for first, stage in enumerate(("before_save", "after_save"))
        for at in range(first % every, saves, every)
    ]
    argument = {"url": settings.url.get_secret_value(), "points": points}
    [ends] = await run_processes("run_agent", [argument])
    assert ends == {namespace: [-9, 0] for namespace, _, _ in points}
    expected = undated(undisturbed.state.to_dict())
    ran = {run.id for step in undisturbed.state.steps for run in step.tool_executions}
    for namespace, _, _ in points:
        async with RedisStateStore(settings.model_copy(update={"namespace": namespace})) as world:
            session = await SessionStore(world).get("a")
            assert undated(session.state.to_dict()) == expected, namespace
            assert session.version == undisturbed.version, namespace
            # A step that was done again had its tools run under the same ids.
            runs = await world.transport.sender.send(
                "ZRANGE", f"{namespace}:v1:{{runs}}:a", 0, -1, repeatable=True
            )
            assert {each.decode() for each in runs} == ran
            assert not await leaked_keys(world.settings)
            await world.delete_everything()


def spawn(name: str = "helper", prompt: str = "help", n: int = 0) -> ToolCall:
    return ToolCall(
        id=f"s{n}", name="spawn_subagent", arguments=FrozenMap(subagent=name, prompt=prompt)
    )


def team(runtime: SessionRuntime, drivers: dict[str, ScriptedDriver], **options: Any) -> SubAgents:
    definitions = {
        name: AgentDefinition(name=name, system_prompt=f"You are {name}") for name in drivers
    }
    return SubAgents(runtime, definitions, lambda d: drivers[d.name], **options)


async def children(runtime: SessionRuntime, name: str) -> list[AgentSession]:
    page = await runtime.sessions.list_headers(agent_name=name)
    return [await runtime.get(header.session_id) for header in page.headers]


async def test_a_subagent_has_a_session_below_its_caller_and_gives_its_answer(
    runtime: SessionRuntime,
) -> None:
    agents = team(runtime, {"helper": ScriptedDriver(call(), "helped")}, tools=[LOOK])
    parent = await runtime.create(fresh("a"))
    loop = AgentLoop(ScriptedDriver(spawn(), "thanks"), tools=[agents.tool])
    session = await run_session(runtime, "a", loop)
    assert session.state.status is ExecutionStatus.COMPLETED
    assert session.state.steps[0].tool_executions[0].value == "helped"
    [child] = await children(runtime, "helper")
    assert child.header.parent_id == "a"
    assert child.state.parent_agent_id == parent.state.agent_id
    assert child.state.context.system_prompt == "You are helper"
    assert child.state.messages[0].text == "help"
    assert child.state.step_count == 2


async def test_a_call_that_is_done_again_goes_on_with_the_same_subagent(
    runtime: SessionRuntime,
) -> None:
    class Crash(BaseException):
        pass

    crashes = [Crash()]

    def fragile(_: ToolRun) -> str:
        if crashes:
            raise crashes.pop()
        return "ok"

    driver = ScriptedDriver(call(), call(1, "fragile"), "helped")
    tools = [LOOK, Tool("fragile", fragile)]
    agents = team(runtime, {"helper": driver}, tools=tools)
    await runtime.create(fresh("a"))
    loop = AgentLoop(ScriptedDriver(spawn(), "thanks"), tools=[agents.tool])
    with pytest.raises(Crash):
        await run_session(runtime, "a", loop)
    [before] = await children(runtime, "helper")
    assert len(before.state.steps) == 1
    session = await run_session(runtime, "a", loop)
    assert session.state.final_response == "thanks\n"
    [after] = await children(runtime, "helper")
    assert after.session_id == before.session_id
    assert after.state.steps[0] == before.state.steps[0]
    assert (after.state.execution_count, after.state.step_count) == (1, 3)


async def test_agents_call_each_other_down_to_the_depth_that_is_allowed(
    runtime: SessionRuntime,
) -> None:
    agents = team(runtime, {"helper": ScriptedDriver(spawn(), "helped")}, max_depth=2)
    await runtime.create(fresh("a"))
    loop = AgentLoop(ScriptedDriver(spawn(), "thanks"), tools=[agents.tool])
    session = await run_session(runtime, "a", loop)
    assert session.state.final_response == "thanks\n"
    below = await children(runtime, "helper")
    assert len(below) == 2
    errors = [error.message for child in below for error in child.state.errors]
    assert "no agent may be called below depth 2" in errors


@pytest.mark.parametrize("arguments", [{}, {"subagent": "nobody", "prompt": "x"}])
async def test_a_subagent_that_cannot_be_called_is_told(
    arguments: dict[str, str], runtime: SessionRuntime
) -> None:
    agents = team(runtime, {"helper": ScriptedDriver("x")})
    wrong = ToolCall(name="spawn_subagent", arguments=FrozenMap(arguments))
    state = await ended(AgentLoop(ScriptedDriver(wrong, "oh"), tools=[agents.tool]))
    assert [error.message for error in state.errors] == [
        "needs a subagent, one of helper, and a prompt"
    ]


async def test_a_stop_of_an_agent_stops_those_below(runtime: SessionRuntime) -> None:
    agents = team(runtime, {"helper": twenty_steps()}, tools=[LOOK])
    await runtime.create(fresh("a"))
    loop = AgentLoop(ScriptedDriver(spawn(), "thanks"), tools=[agents.tool])
    steering = Said(event(SteeringEventType.USER_MESSAGE, "u", text="hi"), stop_at=3)
    session = await run_session(runtime, "a", loop, scope=Scope("a", 0, steering))
    [child] = await children(runtime, "helper")
    assert child.state.stop_reason() is StopReason.USER_REQUESTED
    assert child.state.step_count == 2
    assert [m.text for m in child.state.messages if m.role == "user"] == ["help"]
    assert session.state.status is ExecutionStatus.FAILED
