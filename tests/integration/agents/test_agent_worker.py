"""A worker that executes agents: turns of a session, cancels, pauses, and whom a task waits for."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentDefinition,
    AgentLoop,
    AgentSession,
    AgentState,
    ExecutionBudget,
    ExecutionStatus,
    FrozenMap,
    ScriptedDriver,
    SessionRuntime,
    SessionStore,
    StopReason,
    SubAgents,
    Tool,
    ToolCall,
    ToolRun,
    derived_id,
    run_session,
    session_id_for,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import StepPolicy, TaskContext
from redis_state.worker.agents import agent_handler
from tests.support.agents.sessions import STEPS, twenty_steps
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    pool,
    serving,
    statuses,
    updates_of,
)

DEFINITION = AgentDefinition(name="seeker", budget=ExecutionBudget(max_steps=50))


def look(run: ToolRun) -> dict[str, Any]:
    return {"found": run.arguments["n"]}


LOOK = Tool("look", look)


class Gate:
    """A tool that waits to be let through, at each of its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._open = asyncio.Semaphore(0)

    async def run(self, _: ToolRun) -> str:
        self.calls += 1
        await self._open.acquire()
        return "through"

    def let(self, times: int) -> None:
        for _ in range(times):
            self._open.release()

    async def reached(self, calls: int) -> None:
        await eventually(lambda: self.calls >= calls, f"the tool is called for the {calls}th time")

    def loop(self) -> AgentLoop:
        return AgentLoop(twenty_steps(), tools=[Tool("look", self.run)])


async def state_of(store: RedisStateStore, session_id: str = SESSION) -> AgentState:
    return (await SessionStore(store).get(session_id)).state


async def test_a_task_executes_the_agent_of_its_session(store: RedisStateStore) -> None:
    loop = AgentLoop(ScriptedDriver(ToolCall(name="look", arguments=FrozenMap(n=1)), "42"))
    handler = agent_handler(AgentLoop(twenty_steps(), tools=[LOOK]), definition=DEFINITION)
    async with pool(store, {"agent": handler, "other": agent_handler(loop)}) as client:
        task = await client.submit("agent", "look for it", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        result: Any = ended.result
        assert (result["status"], result["response"]) == ("completed", "found it all")
        assert (result["steps"], result["session"]) == (STEPS, SESSION)
        state = await state_of(store)
        assert state.messages[0].text == "look for it"
        reported = [u for u in await updates_of(store, task) if u.update_type.value == "PROGRESS"]
        assert len(reported) == STEPS + 2
        # Another task of the session goes on with what the first has said.
        other = await client.submit("other", {"message": "more"}, session_id=SESSION)
        await client.wait(SESSION, other, timeout_s=60)
        state = await state_of(store)
        assert state.execution_count == 2
        assert state.status is ExecutionStatus.FAILED  # it has no tool of that name
        missing = await client.submit("other", {"session": "nobody"}, session_id=SESSION)
        assert (await client.wait(SESSION, missing)).status is TaskStatus.FAILED
        wrong = await client.submit("other", {"message": 5}, session_id=SESSION)
        assert "message: text is needed" in str((await client.wait(SESSION, wrong)).error)


async def test_a_cancel_stops_the_execution_as_user_requested(store: RedisStateStore) -> None:
    gate = Gate()
    handler = agent_handler(gate.loop(), definition=DEFINITION)
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        gate.let(2)
        await gate.reached(3)
        assert await client.cancel(SESSION, task, reason="enough")
        gate.let(20)
        await becomes(client, task, TaskStatus.CANCELLED)
        state = await state_of(store)
        assert state.status is ExecutionStatus.STOPPED
        assert state.stop_reason() is StopReason.USER_REQUESTED
        signal_ = state.stop_signal()
        assert signal_ is not None
        assert (signal_.message, signal_.source) == ("enough", "steering")
        assert state.step_count == 3


async def test_a_hard_cancel_ends_the_step_that_runs_without_its_tools(
    store: RedisStateStore,
) -> None:
    gate = Gate()
    handler = agent_handler(gate.loop(), definition=DEFINITION)
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        gate.let(2)
        await gate.reached(3)
        await client.steer(SESSION, task, SteeringEventType.CANCEL, {"hard": True})
        await becomes(client, task, TaskStatus.CANCELLED)
        state = await state_of(store)
        assert state.stop_reason() is StopReason.USER_REQUESTED
        assert (state.status, state.step_count) == (ExecutionStatus.STOPPED, 3)
        assert [len(step.tool_executions) for step in state.steps] == [1, 1, 0]


async def test_a_pause_waits_between_steps_and_what_is_said_enters_the_conversation(
    store: RedisStateStore,
) -> None:
    gate = Gate()
    handler = agent_handler(gate.loop(), definition=DEFINITION)
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        await gate.reached(1)
        await client.steer(SESSION, task, SteeringEventType.PAUSE, {})
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, {"text": "hurry"})
        await client.steer(SESSION, task, SteeringEventType.INJECT_CONTEXT, {"text": "it rains"})

        # A second inbox's worth of time: what was sent has arrived when a later update has.
        gate.let(20)

        async def one_step() -> bool:
            return len((await state_of(store)).steps) == 1

        await eventually(one_step, "the first step is saved")
        assert gate.calls == 1
        await client.steer(SESSION, task, SteeringEventType.RESUME, {})
        assert (await client.wait(SESSION, task, timeout_s=60)).status is TaskStatus.COMPLETE
        state = await state_of(store)
        stated = [m.text for m in state.store.section("messages") if m.role in ("user", "system")]
        assert stated == ["go", "hurry", "it rains"]
        assert state.step_count == STEPS


async def test_two_tasks_of_one_session_execute_it_one_after_the_other(
    store: RedisStateStore,
) -> None:
    gate = Gate()
    handlers = {
        "slow": agent_handler(gate.loop(), definition=DEFINITION),
        "quick": agent_handler(AgentLoop(ScriptedDriver("quick")), definition=DEFINITION),
    }
    async with pool(store, handlers) as client:
        slow = await client.submit("slow", "first", session_id=SESSION)
        await gate.reached(1)
        quick = await client.submit("quick", "second", session_id=SESSION)
        await becomes(client, quick, TaskStatus.RUNNING)
        assert (await state_of(store)).execution_count == 1
        gate.let(20)
        for task in (slow, quick):
            assert (await client.wait(SESSION, task, timeout_s=60)).status is TaskStatus.COMPLETE
        state = await state_of(store)
        assert state.execution_count == 2
        stated = [m.text for m in state.store.section("messages") if m.role == "user"]
        assert stated == ["first", "second"]


class Crash(BaseException):
    """A process dies."""


async def interrupt(store: RedisStateStore, task_id: str) -> None:
    """Leave the session's execution by a task as a crash at its second step does."""

    def fragile(run: ToolRun) -> dict[str, Any]:
        if run.arguments["n"] == 1:
            raise Crash
        return look(run)

    runtime = SessionRuntime(SessionStore(store))
    await runtime.create(AgentSession.fresh(DEFINITION, session_id=SESSION))
    loop = AgentLoop(twenty_steps(), tools=[Tool("look", fragile)])
    execution_id = derived_id("task", SESSION, task_id)
    with pytest.raises(Crash):
        await run_session(runtime, SESSION, loop, message="first", execution_id=execution_id)


@pytest.mark.parametrize("busy_timeout_s", [60.0, 0.0])
async def test_a_task_that_was_interrupted_goes_on_before_another_begins_if_that_is_patient(
    store: RedisStateStore, busy_timeout_s: float
) -> None:
    turn = asyncio.Event()
    again = agent_handler(AgentLoop(twenty_steps(), tools=[LOOK]))

    async def taken_over(ctx: TaskContext) -> Any:
        await turn.wait()
        return await again(ctx)

    quick = agent_handler(AgentLoop(ScriptedDriver("quick")), busy_timeout_s=busy_timeout_s)
    await interrupt(store, "interrupted")
    async with pool(store, {"slow": taken_over, "quick": quick}) as client:
        slow = await client.submit("slow", "first", session_id=SESSION, task_id="interrupted")
        await becomes(client, slow, TaskStatus.RUNNING)
        other = await client.submit("quick", "second", session_id=SESSION)
        if busy_timeout_s:
            lease = store.base.keys.agent_lease(SESSION)

            seen: set[bytes | None] = set()

            async def refrained() -> bool:
                seen.add(await store.transport.sender.send("HGET", lease, "epoch", repeatable=True))
                return len(seen - {None}) >= 2

            await eventually(refrained, "the other task has had the session twice and left it")
            assert (await state_of(store)).execution_count == 1
        else:
            await client.wait(SESSION, other, timeout_s=60)
        turn.set()
        first: Any = (await client.wait(SESSION, slow, timeout_s=60)).result
        second: Any = (await client.wait(SESSION, other, timeout_s=60)).result
        assert second["response"] == "quick"
        ended = (first["status"], first["response"], first["steps"])
        assert ended == (
            ("completed", "found it all", 20) if busy_timeout_s else ("stopped", "", 2)
        )
        state = await state_of(store)
        assert state.execution_count == 2
        assert [m.text for m in state.messages if m.role == "user"] == ["first", "second"]


async def test_a_loop_may_have_subagents(store: RedisStateStore) -> None:
    call = ToolCall(name="spawn_subagent", arguments=FrozenMap(subagent="helper", prompt="help me"))

    def loop(runtime: SessionRuntime) -> AgentLoop:
        definitions = {"helper": AgentDefinition(name="helper")}
        agents = SubAgents(runtime, definitions, lambda _: ScriptedDriver("helped"))
        return AgentLoop(ScriptedDriver(call, "thanks"), tools=[agents.tool])

    async with pool(store, {"agent": agent_handler(loop, definition=DEFINITION)}) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        ended: Any = (await client.wait(SESSION, task, timeout_s=60)).result
        assert ended["response"] == "thanks"
        [child] = (await SessionStore(store).list_headers(agent_name="helper")).headers
        assert child.parent_id == SESSION


async def test_a_task_that_steps_back_leaves_its_slot_to_the_task_that_it_waits_for(
    store: RedisStateStore,
) -> None:
    await interrupt(store, "interrupted")
    quick = agent_handler(AgentLoop(ScriptedDriver("quick")))
    slow = agent_handler(AgentLoop(twenty_steps(), tools=[LOOK]))
    # Another's job is before that of the task that was interrupted, and there is one slot.
    async with client_of(store) as client:
        other = await client.submit("quick", "second", session_id=SESSION)
        first = await client.submit("slow", "first", session_id=SESSION, task_id="interrupted")
        # What it has found out before is not asked for again: its handler has not changed.
        options: dict[str, Any] = {"max_tasks": 1, "steps": StepPolicy(on_changed="fail")}
        worker = agent(store.settings, {"slow": slow, "quick": quick}, **options)
        async with serving(worker):
            for task in (first, other):
                ended = await client.wait(SESSION, task, timeout_s=60)
                result: Any = ended.result
                assert (ended.status, result["status"]) == (TaskStatus.COMPLETE, "completed")
    assert (await state_of(store)).execution_count == 2


async def test_patience_is_for_all_runs_of_a_task_together(store: RedisStateStore) -> None:
    await interrupt(store, "interrupted")
    quick = agent_handler(AgentLoop(ScriptedDriver("quick")), busy_timeout_s=2.5)
    async with pool(store, {"quick": quick}) as client:
        task = await client.submit("quick", "second", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.COMPLETE
        # It was handed back, and each run took up the patience that the others had left.
        assert (await statuses(store, task)).count("RUNNING") >= 3


async def test_patience_is_counted_by_the_servers_clock(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interrupt(store, "interrupted")
    quick = agent_handler(AgentLoop(ScriptedDriver("quick")), busy_timeout_s=60.0)
    slow = agent_handler(AgentLoop(twenty_steps(), tools=[LOOK]))
    async with pool(store, {"slow": slow, "quick": quick}) as client:
        other = await client.submit("quick", "second", session_id=SESSION)

        async def runs() -> int:
            return (await statuses(store, other)).count("RUNNING")

        async def stepped_back() -> bool:
            journal = store.base.keys.journal(SESSION, other)
            names = await store.transport.sender.send("HKEYS", journal, repeatable=True)
            since_when_is_known = any(b"found interrupted" in name for name in names)
            return since_when_is_known and (await statuses(store, other))[-1] == "PENDING"

        await eventually(stepped_back, "the other task has stepped back")
        before, real = await runs(), time.time
        # As if the next runs were those of a worker whose clock is ahead.
        monkeypatch.setattr(time, "time", lambda: real() + 3600)

        async def stepped_back_again() -> bool:
            # The first of them may have looked at the clock before.
            return await runs() >= before + 2 and await stepped_back()

        await eventually(stepped_back_again, "it has stepped back again")
        first = await client.submit("slow", "first", session_id=SESSION, task_id="interrupted")
        result: Any = (await client.wait(SESSION, first, timeout_s=60)).result
        assert (result["status"], result["steps"]) == ("completed", STEPS)
        assert (await client.wait(SESSION, other, timeout_s=60)).status is TaskStatus.COMPLETE


async def test_a_task_of_another_session_is_stepped_back_for(store: RedisStateStore) -> None:
    await interrupt(store, "interrupted")
    quick = agent_handler(AgentLoop(ScriptedDriver("quick")))
    slow = agent_handler(AgentLoop(twenty_steps(), tools=[LOOK]))
    async with pool(store, {"slow": slow, "quick": quick}) as client:
        task = await client.submit("quick", {"session": SESSION}, session_id="elsewhere")

        async def stepped_back() -> bool:
            state = await client.get("elsewhere", task)
            return state is not None and state.status is TaskStatus.PENDING

        await eventually(stepped_back, "the task has stepped back")
        first = await client.submit("slow", "first", session_id=SESSION, task_id="interrupted")
        result: Any = (await client.wait(SESSION, first, timeout_s=60)).result
        assert (result["status"], result["steps"]) == ("completed", STEPS)
        ended = await client.wait("elsewhere", task, timeout_s=60)
        assert ended.status is TaskStatus.COMPLETE


async def test_a_hard_cancel_of_a_task_that_waits_leaves_anothers_execution(
    store: RedisStateStore,
) -> None:
    await interrupt(store, "interrupted")
    entered = asyncio.Event()

    class Slow(SessionStore):
        """The read after which a task sees that the session is another's takes its time."""

        async def load(self, session_id: str) -> AgentSession | None:
            if not entered.is_set():
                entered.set()
                await asyncio.Event().wait()
            return await super().load(session_id)

    quick = agent_handler(AgentLoop(ScriptedDriver("quick")), sessions=Slow)
    async with pool(store, {"quick": quick}) as client:
        task = await client.submit("quick", "second", session_id=SESSION)
        await asyncio.wait_for(entered.wait(), 60)
        await client.steer(SESSION, task, SteeringEventType.CANCEL, {"hard": True})
        await becomes(client, task, TaskStatus.CANCELLED)
    state = await state_of(store)
    assert state.status is ExecutionStatus.IN_PROGRESS
    assert state.stop_signal() is None


@pytest.mark.parametrize("name", ["user:42", "::", "-x", "a/b c"])
async def test_a_task_session_of_any_name_has_an_agent(name: str, store: RedisStateStore) -> None:
    handler = agent_handler(AgentLoop(ScriptedDriver("hi")), definition=DEFINITION)
    async with pool(store, {"agent": handler}) as client:
        task = await client.submit("agent", "go", session_id=name)
        result: Any = (await client.wait(name, task, timeout_s=60)).result
    assert result["response"] == "hi"
    assert result["session"] == session_id_for(name)
    assert len({session_id_for(each) for each in (name, "user:42", "user-42", "a/b/c")}) >= 3
