from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.agents import (
    AgentLoop,
    AgentSession,
    AgentState,
    SessionRuntime,
    SessionStore,
    Tool,
    ToolRun,
    derived_id,
    run_session,
)
from redis_state.models import SteeringEventType
from redis_state.worker import TaskClient
from tests.support.agents.sessions import STEPS, same_agent, twenty_steps, undated
from tests.support.processes.pools import (
    SESSION,
    queue_of,
)
from tests.support.servers.faults import start_process


def look(run: ToolRun) -> dict[str, Any]:
    return {"found": run.arguments["n"]}


LOOK = Tool("look", look)


async def state_of(store: RedisStateStore, session_id: str = SESSION) -> AgentState:
    return (await SessionStore(store).get(session_id)).state


async def killed_and_gone_on(
    settings: Settings, task_id: str, number: int, kills: list[int], **options: Any
) -> int | None:
    """Run a task in a process of its own; tell how that ended."""
    argument = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "task": task_id,
        "kills": kills,
        "name": f"w{number}",
    }
    process = await start_process("agent_worker", argument | options)
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert b"Traceback" not in errors, errors.decode()
    return process.returncode


@pytest.mark.role("admin")
async def test_a_task_whose_workers_are_killed_ends_like_an_undisturbed_one(
    store: RedisStateStore, settings: Settings, beside: Callable[[str], Settings]
) -> None:
    runtime = SessionRuntime(SessionStore(store))
    task_id = "killed-again-and-again"
    await runtime.create(same_agent(SESSION))
    # The same agent and the same execution, in a world of its own.
    async with RedisStateStore(beside("undisturbed")) as other:
        peaceful = SessionRuntime(SessionStore(other))
        await peaceful.create(same_agent(SESSION))
        undisturbed = await run_session(
            peaceful,
            SESSION,
            AgentLoop(twenty_steps(), tools=[LOOK]),
            message="go",
            execution_id=derived_id("task", SESSION, task_id),
        )
        await other.delete_everything()
    async with TaskClient(store, queue=queue_of(settings)) as client:
        await client.submit("agent", "go", session_id=SESSION, task_id=task_id)
        kills = [0, 7, 18]
        ends = [
            await killed_and_gone_on(settings, task_id, number, kills)
            for number in range(len(kills) + 1)
        ]
        assert ends == [-signal.SIGKILL] * len(kills) + [os.EX_OK]
        ended: Any = (await client.wait(SESSION, task_id)).result
        assert ended["response"] == "found it all"
        session: AgentSession = await runtime.get(SESSION)
        assert undated(session.state.to_dict()) == undated(undisturbed.state.to_dict())
        assert session.version == undisturbed.version


async def test_what_is_said_while_no_worker_is_there_enters_the_conversation_once(
    store: RedisStateStore, settings: Settings
) -> None:
    await SessionRuntime(SessionStore(store)).create(same_agent(SESSION))
    kills = [3, 4]
    async with TaskClient(store, queue=queue_of(settings)) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        for number in range(len(kills) + 1):
            ended = await killed_and_gone_on(settings, task, number, kills)
            assert ended == (os.EX_OK if number == len(kills) else -signal.SIGKILL)
            if number < len(kills):
                stated = {"text": f"after kill {number}"}
                await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, stated)
        result: Any = (await client.wait(SESSION, task)).result
        assert (result["response"], result["steps"]) == ("found it all", STEPS)
    state = await state_of(store)
    said_by_users = [m.text for m in state.store.section("messages") if m.role == "user"]
    assert said_by_users == ["look for it", "go", "after kill 0", "after kill 1"]


async def test_a_worker_killed_while_a_subagent_works_has_the_same_one_gone_on_with(
    store: RedisStateStore, settings: Settings
) -> None:
    runtime = SessionRuntime(SessionStore(store))
    await runtime.create(same_agent(SESSION))
    kills = [0, 9]
    async with TaskClient(store, queue=queue_of(settings)) as client:
        task = await client.submit("agent", "go", session_id=SESSION)
        for number in range(len(kills) + 1):
            ended = await killed_and_gone_on(settings, task, number, kills, below=True)
            assert ended == (os.EX_OK if number == len(kills) else -signal.SIGKILL)
        result: Any = (await client.wait(SESSION, task)).result
        assert (result["response"], result["steps"]) == ("thanks", 2)
    [header] = (await runtime.sessions.list_headers(agent_name="helper")).headers
    child = await runtime.get(header.session_id)
    assert (child.state.execution_count, child.state.step_count) == (1, STEPS)
    # Created, begun, each answer but the last, each step, over: no save was done twice.
    assert child.version == 1 + 2 * STEPS + 1
