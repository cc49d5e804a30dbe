"""What the tests of agents share: sessions, steps, and how much a call costs the server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from redis_state import RedisStateStore
from redis_state.agents import (
    AgentDefinition,
    AgentSession,
    AgentState,
    AgentStep,
    ExecutionBudget,
    FrozenMap,
    InferenceResponse,
    Message,
    ScriptedDriver,
    SessionStore,
    ToolCall,
    ToolExecution,
    Usage,
)
from tests.support.servers.sets.nodes import ask_each

# Dates differ from run to run; nothing else does.
DATES = frozenset(
    {"createdAt", "updatedAt", "startedAt", "completedAt", "currentStepStartedAt", "duration"}
)


def fresh(session_id: str | None = None, *, name: str = "coder", **fields: Any) -> AgentSession:
    """Make a session that no store has."""
    return AgentSession.fresh(AgentDefinition(name=name, **fields), session_id=session_id)


def stepped(state: AgentState, number: int, *, size: int = 200) -> AgentState:
    """Return a state with one more step that is over: a tool was asked for, and ran."""
    call = ToolCall(id=f"call-{number}", name="look", arguments=FrozenMap(n=number))
    step = AgentStep(
        output_messages=(Message(role="assistant", content=f"{number} ".ljust(size, "x")),),
        tool_executions=(ToolExecution.succeeded(call, {"found": number}),),
        inference_response=InferenceResponse(tool_calls=(call,), usage=Usage(input=10, output=5)),
    )
    return state.with_current_step(step).with_current_step_completed()


async def info(store: RedisStateStore, name: str) -> int:
    """Read a counter of the server; of a cluster, the sum of its nodes'."""
    total = 0
    for text in await ask_each(store.transport, "INFO", "everything"):
        found = re.search(rf"^{name}:(\d+)", text.decode(), re.MULTILINE)
        assert found, name
        total += int(found.group(1))
    return total


def undated(value: Any) -> Any:
    """Leave the dates out of a wire form, and durations."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: undated(inner) for name, inner in items if name not in DATES}
    if isinstance(value, list):
        return [undated(inner) for inner in cast("Sequence[Any]", value)]
    return value


AGENT = "00000001-0000-4000-8000-000000000001"
EXECUTION = "00000002-0000-4000-8000-000000000001"
STEPS = 20


def twenty_steps() -> ScriptedDriver:
    """Give a driver that has a tool run nineteen times, then answers."""
    calls = (ToolCall(id=f"c{n}", name="look", arguments=FrozenMap(n=n)) for n in range(STEPS - 1))
    return ScriptedDriver(*calls, "found it all")


def same_agent(session_id: str) -> AgentSession:
    """Make a session of the one agent that is executed undisturbed and disturbed."""
    message = Message(id=AGENT, role="user", content="look for it")
    state = AgentState(agent_id=AGENT).with_messages([message])
    definition = AgentDefinition(name="seeker", budget=ExecutionBudget(max_steps=50))
    return AgentSession.fresh(definition, session_id=session_id, state=state)


async def ids(sessions: SessionStore, **options: Any) -> list[str]:
    """List the ids of sessions."""
    page = await sessions.list_headers(**options)
    return [header.session_id for header in page.headers]


async def fields_of(store: RedisStateStore, session_id: str) -> dict[str, bytes]:
    """Read what is stored of a session."""
    flat = await store.base.fetch(store.base.keys.agent_session(session_id))
    return {name.decode(): data for name, data in zip(flat[::2], flat[1::2], strict=True)}
