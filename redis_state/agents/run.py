"""Running a session's agent durably: each state that its loop gives is saved before the next.

A process that dies anywhere leaves the last completed step. Whoever goes on begins there, and the
ids of what is done again are the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from redis_state.agents.driver import Scope, Unsteered
from redis_state.agents.history import ExecutionHistory, summary_of
from redis_state.agents.ids import derived_id
from redis_state.agents.loop import AgentLoop, begin
from redis_state.agents.messages import MESSAGES, Message
from redis_state.agents.runtime import SessionRuntime
from redis_state.agents.session import AgentSession
from redis_state.agents.state import AgentState
from redis_state.transport.scripts import Fence

Told = Callable[[AgentSession], Awaitable[None]]


async def run_session(
    runtime: SessionRuntime,
    session_id: str,
    loop: AgentLoop,
    *,
    message: str | None = None,
    execution_id: str | None = None,
    scope: Scope | None = None,
    fence: Fence | None = None,
    told: Told | None = None,
) -> AgentSession:
    """Execute a session's agent to its end and return the session as it was saved last.

    Named by ``execution_id``, an execution happens once, whoever calls this how often: one that
    is over is returned, one that is not is gone on with, and ``message`` is said once. Hold the
    session meanwhile (`SessionRuntime.holding`) and give its fence. Errors: SessionConflict if
    somebody else saved the session; call it again to go on from there. LeaseLost, BackendError.
    """
    session = await runtime.get(session_id)
    where = scope or Scope(session_id, 0, Unsteered())
    state = _with_message(session.state, message, execution_id)
    states = loop.states(
        state, definition=session.definition, execution_id=execution_id, scope=where
    )
    async with aclosing(states):
        async for each in states:
            if each is session.state:
                continue  # gone on with: it is saved already
            session = await runtime.save(session.with_state(each), fence=fence)
            if told is not None:
                await told(session)
    if session.state.execution is not None:
        history = ExecutionHistory(runtime.sessions)
        await history.record(session.state.agent_id, summary_of(session.state))
    return session


def _with_message(state: AgentState, text: str | None, execution_id: str | None) -> AgentState:
    begun = begin(state, execution_id)
    if text is None or begun is None or begun is state or begun.execution is None:
        return state
    message_id = derived_id(begun.execution.execution_id, "message")
    if any(message.id == message_id for message in state.store.section(MESSAGES)):
        return state
    return state.with_messages([Message(id=message_id, role="user", content=text)])
